"""From an HTTP request to a Call: paths, labels, routes, and what goes on to the replica."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fake_replica import FakeReplica, Json, Reply
from tests.gateway.running import CHAT, Running, chat, running
from wastegate.core.call import Call
from wastegate.core.ledger import Entry
from wastegate.core.plan import Timers
from wastegate.gateway.relay import Flight
from wastegate.gateway.request import Gate, Incoming, Route
from wastegate.gateway.serve import Limits
from wastegate.levers import Config as Levers


@pytest.fixture
async def replica() -> AsyncIterator[FakeReplica]:
    async with FakeReplica() as one:
        yield one


@pytest.fixture
async def gateway(tmp_path: Path, replica: FakeReplica) -> AsyncIterator[Running]:
    async with running(tmp_path, replica) as here:
        yield here


async def entry_of(gateway: Running, path: str = CHAT, **headers: str) -> Entry:
    """What is written down of a call with such headers (``_`` stands for ``-``)."""
    before = len(gateway.entries)
    await gateway.post(chat(), path, {name.replace("_", "-"): value for name, value in headers.items()})
    return (await gateway.closed(before + 1))[-1]


# ---- labels


async def test_the_labels_of_a_call(gateway: Running) -> None:
    entry = await entry_of(
        gateway,
        x_wastegate_tenant="acme",
        x_wastegate_tag_team="search",
        X_Wastegate_Tag_Feature="summary",
        x_request_id="client-7",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    assert (entry.tenant, entry.client_id) == ("acme", "client-7")
    assert entry.traceparent == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert entry.tags == (("team", "search"), ("feature", "summary"))
    assert (entry.model, entry.path, entry.route, entry.stream) == ("fake", CHAT, CHAT, False)
    assert entry.length_class == "short"


async def test_no_labels_are_labels_too(gateway: Running) -> None:
    entry = await entry_of(gateway)
    assert (entry.tenant, entry.client_id, entry.traceparent, entry.tags) == ("default", "", "", ())


async def test_labels_are_bounded_and_printable(gateway: Running) -> None:
    many = {f"x_wastegate_tag_t{number}": "v" * 200 for number in range(20)}
    entry = await entry_of(gateway, CHAT, x_wastegate_tenant="a\tb\xff" + "x" * 100, x_request_id=" ", **many)
    assert entry.tenant == "a?b?" + "x" * 60
    assert len(entry.tags) == 8
    assert all(value == "v" * 64 for _, value in entry.tags)


async def test_a_client_that_repeats_its_id_is_two_calls(gateway: Running) -> None:
    first = await entry_of(gateway, x_request_id="same")
    second = await entry_of(gateway, x_request_id="same")
    assert first.id != second.id
    assert first.client_id == second.client_id == "same"


async def test_a_model_name_cannot_fill_the_ledger(gateway: Running) -> None:
    answer = await gateway.post(chat(model="x" * 100_000))
    (entry,) = await gateway.closed(1)
    assert (answer.status, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert len(answer.body) < 1000
    assert len(entry.model) == 256
    assert (entry.outcome, entry.attempts) == ("refused", ())


# ---- paths


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/embeddings", "/v1/rerank", "/score", "/pooling", "/detokenize"]
)
async def test_every_path_that_is_passed_on_is_accounted_for(gateway: Running, replica: FakeReplica, path: str) -> None:
    entry = await entry_of(gateway, path=path)
    assert (entry.path, entry.outcome, len(entry.attempts)) == (path, "finished", 1)
    assert [call.path for call in replica.calls] == [path]


async def test_a_query_goes_on_and_is_no_part_of_the_route(gateway: Running, replica: FakeReplica) -> None:
    entry = await entry_of(gateway, path=f"{CHAT}?api-version=1&x=/../y")
    assert (entry.path, entry.route) == (CHAT, CHAT)
    assert replica.calls[0].path == f"{CHAT}?api-version=1&x=/../y"


async def test_an_answer_that_makes_no_tokens_counts_none(gateway: Running, replica: FakeReplica) -> None:
    replica.default = Reply(body=Json(body=b'{"data":[],"usage":{"prompt_tokens":12,"total_tokens":12}}'))
    entry = await entry_of(gateway, path="/v1/embeddings")
    attempt = entry.attempts[0]
    assert (attempt.prompt_tokens, attempt.output_tokens, attempt.usage) == (12, 0, "engine")


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("POST", "/v1/nowhere", 404, "/v1/nowhere is not served here; POST to /v1/chat/completions"),
        ("GET", "/", 404, "/ is not served here"),
        ("GET", CHAT, 405, "/v1/chat/completions takes POST, not GET"),
        ("DELETE", "/v1/embeddings", 405, "/v1/embeddings takes POST, not DELETE"),
        ("POST", "/v1/models", 404, "not served here"),
        ("POST", "http://x/v1/chat/completions", 404, "not served here"),
        ("POST", "/v1/chat/completions/", 404, "not served here"),
        ("POST", "/V1/CHAT/COMPLETIONS", 404, "not served here"),
        ("POST", "/v1/%63hat/completions", 404, "not served here"),
        ("OPTIONS", "*", 404, "* is not served here"),
    ],
)
async def test_other_paths_and_methods_say_what_is_served(
    gateway: Running, replica: FakeReplica, method: str, path: str, status: int, says: str
) -> None:
    async with await gateway.connect() as wire:
        wire.send(f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())
        answer = await wire.answer()
    assert answer.status == status
    assert says in answer.error
    assert answer.header("allow") == ("POST" if status == 405 else "")
    assert gateway.hub.tally.rejected["path"] == 1
    assert (replica.calls, gateway.entries) == ([], [])


@pytest.mark.parametrize(
    ("body", "param"), [(b"", None), (b"{", None), (b'{"model":7}', "model"), (b'{"stream":"yes"}', "stream")]
)
async def test_a_body_that_cannot_be_read_is_a_400_that_names_it(
    gateway: Running, replica: FakeReplica, body: bytes, param: str | None
) -> None:
    answer = await gateway.post(body)
    assert (answer.status, answer.json()["error"]["param"]) == (400, param)
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert gateway.hub.tally.rejected["body"] == 1
    assert (replica.calls, gateway.entries) == ([], [])


# ---- what the gateway says of itself


async def test_the_models_are_those_of_the_fleet(tmp_path: Path) -> None:
    async with (
        FakeReplica(models=("a", "b")) as one,
        FakeReplica(models=("b", "c")) as other,
        running(tmp_path, one, other) as gateway,
    ):
        answer = await gateway.get("/v1/models")
    assert [row["id"] for row in answer.json()["data"]] == ["a", "b", "c"]
    assert {row["object"] for row in answer.json()["data"]} == {"model"}


async def test_health_is_the_gateways_and_ready_is_the_fleets(gateway: Running, replica: FakeReplica) -> None:
    assert (await gateway.get("/ready")).status == 200
    await replica.stop()
    await gateway.until(lambda: gateway.world.states[0].state == "down", "the replica is down")
    assert ((await gateway.get("/health")).status, (await gateway.get("/ready")).status) == (200, 503)
    assert (await gateway.get("/ready")).json() == {"status": "ok", "replicas": 1, "ready": 0}
    await replica.start()
    await gateway.ready(1)


# ---- the way into a call, without a network


class Catcher:
    """Takes what the gate decides, and lets nothing fly."""

    def __init__(self) -> None:
        self.flights: list[Flight] = []
        self.answers: list[tuple[int, bytes]] = []

    def respond(self, status: int, content_type: bytes, body: bytes, extra: bytes = b"") -> None:
        self.answers.append((status, body))

    def fly(self, flight: Flight, request_id: bytes) -> None:
        self.flights.append(flight)


def call_of(gateway: Running, body: bytes, path: str = CHAT, routes: tuple[Route, ...] = ()) -> tuple[Call, Timers]:
    """The call that a request becomes, and its timers."""
    incoming = Incoming()
    incoming.method, incoming.url, incoming.body = b"POST", path.encode(), [body]
    catcher = Catcher()
    Gate(gateway.hub, routes, Timers(), Limits(), Levers()).serve(incoming, catcher)
    (flight,) = catcher.flights
    return flight._call, flight._timers


async def test_what_policy_is_told(gateway: Running) -> None:
    body = chat(stream=True, n=3, temperature=0, max_tokens=5, max_completion_tokens=9, priority=-2)
    call, _ = call_of(gateway, body)
    assert (call.stream, call.n, call.deterministic, call.max_tokens, call.priority) == (True, 3, True, 9, -2)
    prompt = msgspec.json.encode(msgspec.json.decode(body)["messages"])
    assert (call.prompt_bytes, call.prompt_tokens) == (len(prompt), len(body) // 4)
    assert not call.wants_usage
    assert call.model == "fake"


@pytest.mark.parametrize(
    ("members", "path", "wants"),
    [
        ({"stream_options": {"include_usage": True}}, CHAT, True),
        ({"stream_options": {"include_usage": False}}, CHAT, False),
        ({"stream_options": {}}, CHAT, False),
        ({}, "/v1/responses", True),
    ],
)
async def test_whose_usage_is_shown(gateway: Running, members: dict[str, Any], path: str, wants: bool) -> None:
    call, _ = call_of(gateway, chat(stream=True, **members), path)
    assert call.wants_usage == wants


@pytest.mark.parametrize(
    ("members", "failover", "may"),
    [
        ({"stream": True, "temperature": 0}, "deterministic", True),
        ({"stream": True, "temperature": 0.0}, "deterministic", True),
        ({"stream": True}, "deterministic", False),
        ({"stream": True}, "always", True),
        ({"stream": True, "temperature": 0}, "never", False),
        ({"temperature": 0}, "always", False),
        ({"stream": True, "n": 2}, "always", False),
        ({"stream": True, "tools": []}, "always", False),
    ],
)
async def test_which_streams_may_go_on_elsewhere(
    gateway: Running, members: dict[str, Any], failover: Any, may: bool
) -> None:
    call, _ = call_of(gateway, chat(**members), routes=(Route("all", "*", failover=failover),))
    assert call.may_continue == may


async def test_the_first_route_that_matches_counts(gateway: Running) -> None:
    routes = (Route("chat", "/v1/chat/*", Timers(total=5)), Route("rest", "/v1/*", Timers(total=7)))
    seen = {path: call_of(gateway, chat(), path, routes) for path in (CHAT, "/v1/embeddings", "/score")}
    assert {path: (call.route, timers.total) for path, (call, timers) in seen.items()} == {
        CHAT: ("chat", 5),
        "/v1/embeddings": ("rest", 7),
        "/score": ("/score", 600.0),
    }


async def test_an_applications_own_path_is_served_where_a_route_is_for_it(tmp_path: Path, replica: FakeReplica) -> None:
    routes = (Route("behavior", "/api/v1/behavior/*"), Route("chat", "/v1/chat/*"))
    async with running(tmp_path, replica, routes=routes) as gateway:
        wire = await gateway.connect()
        for _ in range(3):  # the same head again and again, on one connection
            wire.post(chat(), "/api/v1/behavior/v1/chat/completions?trace=1")
            assert (await wire.answer()).status == 200
        assert (await gateway.post(chat(), "/api/v1/behavior/today/v1/completions")).status == 200
        assert (await gateway.post(chat(), CHAT)).status == 200
        assert (await gateway.post(chat(), "/api/v1/other/v1/chat/completions")).status == 404
        assert (await gateway.post(chat(), "/api/v1/behavior/v1/secrets")).status == 404
        assert (await gateway.get("/api/v1/behavior/v1/chat/completions")).status == 404
        entries = await gateway.closed(5)
    assert [(entry.route, entry.path) for entry in entries] == [
        *[("behavior", CHAT)] * 3, ("behavior", "/v1/completions"), ("chat", CHAT),
    ]  # fmt: skip
    assert [call.path for call in replica.calls[:4]] == [f"{CHAT}?trace=1"] * 3 + ["/v1/completions"]


async def test_paths_that_clients_make_up_do_not_pile_up(
    tmp_path: Path, replica: FakeReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wastegate.gateway.request._MOST_PATHS", 20)
    async with running(tmp_path, replica, routes=(Route("apps", "/apps/*"),)) as gateway:
        for number in range(30):
            assert (await gateway.post(chat(), f"/apps/{number}{CHAT}")).status == 200
        assert gateway.gateway.front is not None
        assert len(gateway.gateway.front.gate._routes) <= 20
        assert {entry.route for entry in await gateway.closed(30)} == {"apps"}
