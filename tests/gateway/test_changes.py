"""Configurations compared and shown: every difference in words, no secret in any, and what must wait for a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from wastegate.core.fleet import Replica
from wastegate.core.plan import Rules, Timers
from wastegate.core.world import Breaker, RetryBudget
from wastegate.gateway import children, control, devices, probe, recorder, signals, telemetry
from wastegate.gateway.changes import compare, in_force, shown
from wastegate.gateway.config import Config
from wastegate.gateway.request import Route
from wastegate.gateway.serve import Limits
from wastegate.gateway.tls import Files
from wastegate.gateway.upstream import Access

A = Replica("a", "http://a:8000", price=2_500_000_000, cap=4)
B = Replica("b", "https://b:8000", ("small",))
SECRETS = (
    "token-1234",
    "client-key-1",
    "client-key-2",
    "replica-key-1",
    "argument-1",
    "argument-2",
    "-----PEM-----",
    "header-1",
)
FULL = Config(
    data=Path("somewhere"),
    control=control.Config(token="token-1234"),
    routes=(Route("chat", "/v1/chat/*"), Route("rest", "*")),
    replicas=(A, B),
    local=children.Config(arguments=("--context", "512", "--admin-token", "argument-1", "--api-key=argument-2")),
    tls=Files("site.crt", "site.key", "ab12"),
    api_keys=("client-key-1", "client-key-2"),
    api_keys_env="CLIENT_KEYS",
    access={"b": Access("replica-key-1", "B_KEY", "ca.pem", "-----PEM-----")},
    telemetry=telemetry.Config(endpoint="http://c:4318", headers={"authorization": "header-1"}),
)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"timers": Timers(total=300.0)}, ["[timers] total: 600 → 300"]),
        ({"rules": Rules(retry_statuses=(502,))}, ["[retry] retry_statuses: 500, 502, 503, 504 → 502"]),
        ({"budget": RetryBudget(share=0.2)}, ["[retry_budget] share: 0.1 → 0.2"]),
        ({"breaker": Breaker(failures=2)}, ["[breaker] failures: 5 → 2"]),
        ({"probe": probe.Config(path="/ready")}, ["[probe] path: /health → /ready"]),
        ({"limits": Limits(line=7, connections=9)}, ["[limits] connections: 10000 → 9", "[limits] line: 1000 → 7"]),
        ({"telemetry": telemetry.Config(endpoint="http://d:4318", headers={"x-key": "header-1"})},
         ["[telemetry] endpoint: http://c:4318 → http://d:4318", "[telemetry] headers: changed"]),
        ({"ledger": recorder.Config(when_full="serve")}, ["[ledger] when_full: refuse → serve"]),
        ({"control": control.Config(token="token-9")}, ["[admin] token: changed"]),
        ({"control": control.Config()}, ["[admin] token: removed"]),
        ({"api_keys": ("client-key-1",)}, ["[gateway] api_keys: changed"]),
        ({"listen": "0.0.0.0:80", "workers": 2},
         ["[gateway] listen: 127.0.0.1:8080 → 0.0.0.0:80", "[gateway] workers: 1 → 2"]),
        ({"tls": Files("site.crt", "site.key", "cd34")}, ["[gateway] tls_sha256: ab12 → cd34"]),
        ({"replicas": (A,), "access": {}}, ["replica b: removed"]),
        ({"replicas": (A, B, Replica("c", "http://c"))}, ["replica c: added (http://c)"]),
        ({"replicas": (B, A)}, []),
        ({"replicas": (replace(A, url="http://new", cap=None, price=10**9), B)},
         ["replica a: url: http://a:8000 → http://new", "replica a: cap: 4 → none",
          "replica a: price_per_hour: 2.5 → 1"]),
        ({"access": {}},
         ["replica b: ca_file: ca.pem → none", "replica b: ca: removed", "replica b: api_key_env: B_KEY → none",
          "replica b: api_key: removed"]),
        ({"access": {"a": Access("new", "A_KEY"), **FULL.access}},
         ["replica a: api_key_env: none → A_KEY", "replica a: api_key: set"]),
        ({"routes": (Route("chat", "/v1/chat/*", Timers(idle=5.0)), Route("rest", "*"))},
         ["route chat: timers.idle: 60 → 5"]),
        ({"routes": (Route("rest", "*"), Route("chat", "/v1/chat/*"))}, ["routes: now in the order rest, chat"]),
        ({"routes": (*FULL.routes, Route("rest", "/v1/x"))}, ["route rest (2): added (/v1/x)"]),
        ({"local": children.Config(bind_cores=False, arguments=FULL.local.arguments)},
         ["[local] bind_cores: true → false"]),
        ({"devices": devices.Config(redis="redis://:secret@x/0", nvml=True)},
         ["[devices] nvml: false → true", "[devices] redis: set"]),
        ({"places": {"a": devices.Place("http://a:9400/metrics", ("0", "1"))}},
         ["replica a: dcgm: none → http://a:9400/metrics", "replica a: devices: none → 0, 1"]),
        ({"signals": signals.Config(every=0)}, ["[signals] every: 5 → 0"]),
        ({"source": "elsewhere.toml", "sha256": "00"}, []),
    ],
)  # fmt: skip
def test_each_difference_is_a_line(changed: dict[str, Any], said: list[str]) -> None:
    assert list(compare(FULL, replace(FULL, **changed))) == said


def test_equal_configurations_differ_in_nothing() -> None:
    assert compare(FULL, replace(FULL)) == ()


def test_every_setting_is_shown_and_no_secret_is() -> None:
    page = msgspec.json.encode(shown(FULL)).decode()
    for secret in SECRETS:
        assert secret not in page
    told = shown(FULL)
    assert told["admin"]["token"] == told["gateway"]["api_keys"] == told["replicas"][1]["api_key"] == "***"
    assert told["replicas"][0]["api_key"] == "", "what is not set is seen to be not set"
    assert told["replicas"][1]["api_key_env"] == "B_KEY"
    assert told["replicas"][0]["price_per_hour"] == 2.5
    assert told["local"]["arguments"] == ["--context", "512", "--admin-token", "***", "--api-key=", "***"]


def test_every_part_of_a_configuration_is_compared() -> None:
    """A part that is added later must be shown, too."""
    parts = {field.name for field in msgspec.structs.fields(Config)}
    renamed = {"control": "admin", "rules": "retry", "budget": "retry_budget"}
    inside = {"listen", "workers", "data", "tls", "api_keys", "api_keys_env", "access", "places", "source", "sha256"}
    assert {renamed.get(part, part) for part in parts - inside} | {"gateway"} == shown(FULL).keys()


@pytest.mark.parametrize(
    "changed",
    [
        {"listen": "0.0.0.0:80"},
        {"workers": 4},
        {"data": Path("elsewhere")},
        {"local": children.Config(replicas=7)},
        {"control": replace(FULL.control, listen="127.0.0.1:1")},
        {"ledger": recorder.Config(path="other.db", journal="other", segment_mb=1)},
        {"tls": Files()},
        {"replicas": (), "access": {}},
    ],
)
def test_what_cannot_change_stays_until_a_restart(changed: dict[str, Any]) -> None:
    new = replace(FULL, **changed)
    assert in_force(FULL, new) == FULL
    assert compare(in_force(FULL, new), new), "it is said what the file asks for"


@pytest.mark.parametrize(
    "changed",
    [
        {"timers": Timers(total=1.0), "rules": Rules(hold=1.0), "limits": Limits(line=1)},
        {"control": replace(FULL.control, token="other")},
        {"ledger": recorder.Config(when_full="serve")},
        {"tls": Files("new.crt", "new.key")},
        {"replicas": (A,), "routes": (), "api_keys": ()},
    ],
)
def test_everything_else_may_change(changed: dict[str, Any]) -> None:
    new = replace(FULL, **changed)
    assert in_force(FULL, new) == new


def test_tls_cannot_be_switched_on_either() -> None:
    plain = replace(FULL, tls=Files())
    assert in_force(plain, FULL).tls == Files()
    local = replace(FULL, replicas=(), access={})
    assert in_force(local, FULL).replicas == ()
