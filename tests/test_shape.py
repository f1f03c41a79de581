"""Levers and steps keep their one shape, and a lever that is off leaves every plan as it was."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from types import ModuleType
from typing import Any

import msgspec
import pytest

from wastegate.core.call import Call
from wastegate.core.fleet import Replica, ReplicaState, View
from wastegate.core.ledger import Attempt
from wastegate.core.plan import Plan, Rules, Timers, baseline


def lever_problems(module: ModuleType) -> list[str]:
    """What keeps a module from being a lever; empty when it is one."""
    problems = _config_problems(module)
    problems += _signature_problems(module, "decide", ["plan", "view", "config"])
    problems += _signature_problems(module, "measure", ["entries", "config"])
    if problems:
        return problems
    config = module.Config()
    for plan, view in sample_plans():
        if module.decide(plan, view, config) != plan:
            return [f"a default Config must leave every plan untouched, but decide() changed {plan!r}"]
    return []


def step_problems(module: ModuleType) -> list[str]:
    """What keeps a module from being a step; empty when it is one."""
    problems = []
    if not _frozen_struct(getattr(module, "Report", None)):
        problems.append("Report must be a frozen msgspec.Struct")
    run = getattr(module, "run", None)
    if not inspect.isfunction(run) or next(iter(inspect.signature(run).parameters), "") != "site":
        problems.append("run must be a function whose first parameter is site")
    return problems + _signature_problems(module, "judge", ["report"])


def _config_problems(module: ModuleType) -> list[str]:
    config: Any = getattr(module, "Config", None)
    if not _frozen_struct(config):
        return ["Config must be a frozen msgspec.Struct"]
    problems = []
    if not config.__struct_config__.forbid_unknown_fields:
        problems.append("Config must forbid unknown fields, or a typing error in wastegate.toml goes unseen")
    required = [field.name for field in msgspec.structs.fields(config) if field.required]
    if required:
        problems.append(f"Config must have a default for everything; {required} have none")
    return problems


def _signature_problems(module: ModuleType, name: str, parameters: list[str]) -> list[str]:
    function = getattr(module, name, None)
    if inspect.isfunction(function) and list(inspect.signature(function).parameters) == parameters:
        return []
    return [f"{name} must be a function of ({', '.join(parameters)})"]


def _frozen_struct(kind: object) -> bool:
    return inspect.isclass(kind) and issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen


def sample_plans() -> list[tuple[Plan, View]]:
    """A plan of each kind with the view that led to it: sent, retried, waiting, refused."""
    call = Call("c-1", 100.0, "chat", "/v1/chat/completions", "small", prompt_tokens=40, deterministic=True)
    a, b = (Replica(name, f"http://127.0.0.1/{name}", ("small",), cap=2) for name in "ab")
    free = (ReplicaState(a, "ready"), ReplicaState(b, "ready", in_flight=1))
    full = (ReplicaState(a, "ready", in_flight=2), ReplicaState(b, "ready", in_flight=2))
    failed = Attempt(1, "a", 100.0, 100.1, "failed", reason="connect")
    situations: list[tuple[tuple[ReplicaState, ...], tuple[Attempt, ...]]] = [
        (free, ()),
        (free, (failed,)),
        (full, ()),
        ((), ()),
    ]
    pairs = []
    for states, tried in situations:
        view = View(100.2, states, draw=0.3, known_models=("small",))
        pairs.append((baseline(call, view, tried, Timers(), Rules()), view))
    return pairs


def lever_names() -> list[str]:
    levers = _package("wastegate.levers")
    return [module.name for module in pkgutil.iter_modules(levers.__path__)] if levers else []


def step_names() -> list[str]:
    steps = _package("wastegate.steps")
    return list(steps.STEPS) if steps else []


def _package(name: str) -> ModuleType | None:
    """None while the room has not been built: a folder without ``__init__.py`` is not a room."""
    spec = importlib.util.find_spec(name)
    return importlib.import_module(name) if spec is not None and spec.origin is not None else None


def test_every_lever_has_the_shape_of_a_lever() -> None:
    found = {name: lever_problems(importlib.import_module(f"wastegate.levers.{name}")) for name in lever_names()}
    assert {name: problems for name, problems in found.items() if problems} == {}


def test_every_step_has_the_shape_of_a_step() -> None:
    found = {name: step_problems(importlib.import_module(f"wastegate.steps.{name}")) for name in step_names()}
    assert {name: problems for name, problems in found.items() if problems} == {}


def test_the_sample_plans_cover_each_kind() -> None:
    kinds = [(plan.replica is not None, plan.wait is not None, plan.refusal is not None) for plan, _ in sample_plans()]
    assert kinds == [(True, False, False), (True, False, False), (False, True, False), (False, False, True)]


# ---- the checkers themselves, on made-up modules


class GoodConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    on: bool = False


class GoodReport(msgspec.Struct, frozen=True):
    rows: int = 0


def decide(plan: Plan, view: View, config: GoodConfig) -> Plan:
    return plan.because("made up: on") if config.on else plan


def measure(entries: object, config: GoodConfig) -> int:
    return 0


def run(site: object, url: str = "") -> GoodReport:
    return GoodReport()


def judge(report: GoodReport) -> str:
    return "hold"


def made_up(**names: object) -> ModuleType:
    module = ModuleType("made_up")
    for name, value in names.items():
        setattr(module, name, value)
    return module


def test_a_good_lever_has_no_problem() -> None:
    assert lever_problems(made_up(Config=GoodConfig, decide=decide, measure=measure)) == []


class Thawed(msgspec.Struct, forbid_unknown_fields=True):
    on: bool = False


class Lax(msgspec.Struct, frozen=True):
    on: bool = False


class Needy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    share: float


class On(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    on: bool = True


def decide_swapped(view: View, plan: Plan, config: GoodConfig) -> Plan:
    return plan


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"Config": Thawed}, "Config must be a frozen"),
        ({"Config": None}, "Config must be a frozen"),
        ({"Config": Lax}, "Config must forbid unknown fields"),
        ({"Config": Needy}, "['share'] have none"),
        ({"Config": On}, "a default Config must leave every plan untouched"),
        ({"decide": decide_swapped}, "decide must be a function of (plan, view, config)"),
        ({"measure": None}, "measure must be a function of (entries, config)"),
    ],
)
def test_a_bad_lever_is_told_what_is_wrong(changed: dict[str, object], problem: str) -> None:
    (said,) = lever_problems(made_up(**{"Config": GoodConfig, "decide": decide, "measure": measure, **changed}))
    assert problem in said


def test_a_good_step_has_no_problem() -> None:
    assert step_problems(made_up(Report=GoodReport, run=run, judge=judge)) == []


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"Report": Thawed}, "Report must be a frozen"),
        ({"Report": dict}, "Report must be a frozen"),
        ({"run": judge}, "run must be a function whose first parameter is site"),
        ({"run": None}, "run must be a function whose first parameter is site"),
        ({"judge": run}, "judge must be a function of (report)"),
    ],
)
def test_a_bad_step_is_told_what_is_wrong(changed: dict[str, object], problem: str) -> None:
    (said,) = step_problems(made_up(**{"Report": GoodReport, "run": run, "judge": judge, **changed}))
    assert problem in said
