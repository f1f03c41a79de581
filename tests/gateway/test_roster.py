"""The roster: spans follow states, whatever changes in whatever order; those that leave stay until they are idle."""

from __future__ import annotations

import pytest

from tests.playbook import call, reply
from wastegate.core.fleet import Replica
from wastegate.core.ledger import ReplicaSpan, Work
from wastegate.core.plan import Plan, Timers
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.gateway.roster import Roster

A, B = Replica("a", "http://a", ("m",), price=7), Replica("b", "http://b", ("m",), price=9)


class Made:
    """A roster with its world, a clock that stands, and what was saved."""

    def __init__(self) -> None:
        self.time = 100.0
        self.saved: dict[tuple[str, float], ReplicaSpan] = {}
        self.changes = 0
        self.world = World(Breaker(), RetryBudget())
        self.roster = Roster(self.world, lambda: self.time, self._save, self._changed)

    def _save(self, spans: list[ReplicaSpan]) -> None:
        self.saved.update({(span.replica, span.start): span for span in spans})

    def _changed(self) -> None:
        self.changes += 1

    def spans(self, name: str) -> list[tuple[str, float, float | None, int]]:
        """(phase, start, end, price) of each, in order."""
        own = sorted((s for s in self.saved.values() if s.replica == name), key=lambda span: span.start)
        return [(span.phase, span.start, span.end, span.price) for span in own]

    @property
    def states(self) -> dict[str, str]:
        return {s.replica.name: s.state for s in self.world.states}

    def fly(self, name: str) -> None:
        assert self.world.claim(Plan(call(), 1, Timers(), replica=Replica(name, "")), self.time)

    def land(self, name: str) -> None:
        self.world.released(reply(name, "finished", status=200), self.time)


@pytest.fixture
def made() -> Made:
    made = Made()
    made.roster.change([A, B])
    made.time = 101.0
    made.roster.state("a", "ready")
    made.roster.state("b", "ready")
    made.time = 110.0
    return made


def test_a_span_ends_where_the_next_begins(made: Made) -> None:
    made.roster.state("a", "ready")
    made.time = 120.0
    made.roster.state("a", "down")
    made.time = 130.0
    made.roster.state("a", "ready")
    made.time = 140.0
    made.roster.close()
    assert made.spans("a") == [("loading", 100.0, 101.0, 7), ("serving", 101.0, 120.0, 7), ("serving", 130.0, 140.0, 7)]


def test_an_open_span_is_known_to_last(made: Made) -> None:
    made.roster.measured("a", Work(1.0, 2.0, 3.0))
    made.roster.probed("a", 0.5)
    made.roster.probed("a", 0.25)
    made.roster.beat()
    span = made.saved["a", 101.0]
    assert (span.end, span.seen, span.probe_seconds, span.work, span.model) == (
        None, 110.0, 0.75, Work(1.0, 2.0, 3.0), "m",
    )  # fmt: skip


def test_energy_belongs_to_the_span_in_which_it_was_used(made: Made) -> None:
    made.roster.used("a", 10.0)
    made.roster.used("a", 2.5)
    made.roster.used("nobody", 99.0)
    made.time = 120.0
    made.roster.state("a", "draining")
    made.roster.used("a", 4.0)
    made.roster.close()
    joules = {start: span.joules for (name, start), span in made.saved.items() if name == "a"}
    assert joules == {100.0: None, 101.0: 12.5, 120.0: 4.0}
    assert {span.joules for (name, _), span in made.saved.items() if name == "b"} == {None}, "nobody has measured it"


def test_a_word_about_a_stranger_is_dropped(made: Made) -> None:
    made.roster.state("stranger", "ready")
    assert made.states == {"a": "ready", "b": "ready"}
    assert not made.spans("stranger")


def test_an_idle_replica_leaves_at_once(made: Made) -> None:
    made.roster.change([B])
    assert made.states == {"b": "ready"}
    assert made.spans("a")[-1] == ("serving", 101.0, 110.0, 7)
    assert made.roster.replicas == (B,)


def test_a_busy_replica_leaves_when_it_is_idle(made: Made) -> None:
    made.fly("a")
    made.roster.change([B])
    assert made.states == {"b": "ready", "a": "draining"}
    assert not made.world.claim(Plan(call(), 1, Timers(), replica=A), made.time)
    made.roster.state("a", "ready")
    assert made.states["a"] == "draining", "whatever a late probe says"
    made.roster.settle()
    assert "a" in made.states
    made.land("a")
    made.time = 115.0
    made.roster.settle()
    assert made.states == {"b": "ready"}
    assert made.spans("a")[-2:] == [("serving", 101.0, 110.0, 7), ("draining", 110.0, 115.0, 7)]


def test_one_that_comes_back_before_it_is_gone_must_be_found_well_again(made: Made) -> None:
    made.fly("a")
    made.roster.change([B])
    made.roster.change([A, B])
    assert made.states == {"a": "loading", "b": "ready"}
    assert made.world.load("a") == 1, "its call still counts"
    made.roster.state("a", "ready")
    made.roster.settle()
    assert made.states == {"a": "ready", "b": "ready"}


def test_another_address_is_another_engine(made: Made) -> None:
    made.roster.measured("a", Work(1.0, 1.0, 1.0))
    made.roster.unmeasurable("a")
    made.roster.change([Replica("a", "http://elsewhere", ("m",), price=7), B])
    assert made.states == {"a": "loading", "b": "ready"}
    assert made.roster.may_measure("a")
    made.time = 120.0
    made.roster.state("a", "ready")
    assert made.spans("a")[1:] == [
        ("serving", 101.0, 110.0, 7), ("loading", 110.0, 120.0, 7), ("serving", 120.0, None, 7),
    ]  # fmt: skip
    assert made.saved["a", 110.0].work is None


def test_another_price_holds_from_now_on(made: Made) -> None:
    made.roster.change([Replica("a", "http://a", ("m",), price=70), B])
    assert made.states == {"a": "ready", "b": "ready"}, "it serves on"
    assert made.spans("a")[1:] == [("serving", 101.0, 110.0, 7), ("serving", 110.0, None, 70)]
    assert made.spans("b")[1:] == [("serving", 101.0, None, 9)]


def test_a_drained_replica_is_not_made_ready_by_probes(made: Made) -> None:
    made.roster.drain("a")
    assert (made.states["a"], made.roster.drained("a"), made.roster.drained("b")) == ("draining", True, False)
    made.roster.state("a", "ready")
    assert made.states["a"] == "draining"
    made.time = 120.0
    made.roster.undrain("a")
    assert (made.states["a"], made.roster.drained("a")) == ("ready", False)
    assert made.spans("a")[1:] == [
        ("serving", 101.0, 110.0, 7), ("draining", 110.0, 120.0, 7), ("serving", 120.0, None, 7),
    ]  # fmt: skip


def test_drain_keeps_a_replica_that_is_not_up_from_coming_up(made: Made) -> None:
    made.roster.state("a", "down")
    made.roster.drain("a")
    assert made.states["a"] == "down", "one that is down costs nothing: it is not said to drain"
    made.roster.state("a", "loading")
    assert made.states["a"] == "loading"
    made.roster.state("a", "ready")
    assert made.states["a"] == "draining"
    made.roster.state("a", "down")
    made.roster.undrain("a")
    assert made.states["a"] == "down", "only a probe can tell that it is well"


def test_a_drain_outlives_a_reload_but_not_its_replica(made: Made) -> None:
    made.roster.drain("a")
    made.roster.change([A, B])
    assert made.states["a"] == "draining"
    made.roster.change([B])
    made.roster.change([A, B])
    made.roster.state("a", "ready")
    assert made.states["a"] == "ready"


def test_one_that_leaves_cannot_be_undrained(made: Made) -> None:
    made.fly("a")
    made.roster.drain("a")
    made.roster.change([B])
    made.roster.undrain("a")
    assert made.states["a"] == "draining"


@pytest.mark.parametrize("action", ["drain", "undrain"])
def test_nobody_can_be_drained_who_is_not_there(made: Made, action: str) -> None:
    with pytest.raises(KeyError):
        getattr(made.roster, action)("stranger")


def test_every_change_is_told(made: Made) -> None:
    made.changes = 0
    made.roster.put(A)
    made.roster.state("a", "down")
    made.roster.drain("b")
    made.roster.named("b", ("m", "n"), "vllm")
    assert made.changes >= 4
