"""The table of a running gateway's replicas."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from rich.console import Console

from tests.engines.pages import readings
from wastegate.engines import vllm
from wastegate.engines.devices import Load
from wastegate.engines.readback import Effective, Seen
from wastegate.engines.signals import Signals
from wastegate.steps.replicas import GatewayError, Host, Replica, State, fetch, view

SIGNALS = readings(vllm, *(f"vllm-0.32.0-{when}.prom" for when in ("fresh", "busy")))[-1].signals
BUSY = Replica(
    "gpu-a",
    "http://a",
    "ready",
    4,
    seen=Seen("vllm", SIGNALS, Effective(version="0.32.0", sequences=8), warnings=("w",)),
)
DARK = Replica("gpu-[b]", "http://b", "down", 0, drained=True, seen=Seen(error="the replica is down"))


def printed(state: State) -> str:
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(view(state))
    return capture.get()


def test_a_row_a_replica_and_below_it_what_is_wrong() -> None:
    text = printed(State((BUSY, DARK), 4, 1))
    busy = next(line for line in text.splitlines() if "gpu-a" in line)
    assert [cell.strip() for cell in busy.strip("│ ").split("│")][:6] == [
        "gpu-a", "vllm 0.32.0", "ready", "4/8", "0", "6 %"
    ]  # fmt: skip
    dark = next(line for line in text.splitlines() if "gpu-[b]" in line)
    assert dark.count("–") == 10, "what is not known is no zero"
    assert "gpu-a: w" in text
    assert "gpu-[b]: the replica is down" in text


def test_shares_of_nothing_are_not_known() -> None:
    quiet = Signals(0.0, running=0.0, prompt_tokens=0.0, cached_tokens=0.0, draft_tokens=0.0, accepted_tokens=0.0)
    row = printed(State((Replica("r", "u", "ready", 0, seen=Seen("vllm", quiet)),))).splitlines()[4]
    assert row.count("–") == 9


def test_machines_are_shown_where_they_are_measured() -> None:
    load = Load("dcgm", 0.0, 2, busy=0.5, power=373.75, joules=7.2e6, memory_used=72.0 * (1 << 30))
    gpu = Replica("gpu-a", "u", "ready", 0, accelerators=load, alarms=("hot",))
    local = Replica("local-1", "u", "ready", 0, host=Host(12.5, 1 << 30))
    text = printed(State((gpu, local)))
    rows = [line for line in text.splitlines() if "gpu-a" in line or "local-1" in line]
    assert all(figure in rows[2] for figure in ("dcgm", " 2 ", "50 %", "374 W", "2 kWh", "72 GiB"))
    assert rows[2].count("–") == 2
    assert all(figure in rows[3] for figure in ("12.5 s", "1 GiB"))
    assert "gpu-a: alarm: hot" in text
    assert "measured by" not in printed(State((BUSY,)))


@contextmanager
def gateway(status: int, body: bytes) -> Iterator[tuple[str, list[str]]]:
    tokens: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens.append(self.headers.get("authorization", ""))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", tokens
        finally:
            server.shutdown()
            thread.join()


def test_it_is_asked_over_http() -> None:
    with gateway(200, msgspec.json.encode({"in_flight": 1, "waiting": 0, "replicas": [BUSY], "more": 1})) as (
        url,
        sent,
    ):
        assert fetch(url, "secret") == State((BUSY,), 1, 0)
    assert sent == ["Bearer secret"]


@pytest.mark.parametrize(
    ("status", "body", "said"), [(401, b"{}", "its admin token is needed"), (200, b"<html>", "no gateway answers")]
)
def test_who_answers_otherwise_is_named(status: int, body: bytes, said: str) -> None:
    with gateway(status, body) as (url, _), pytest.raises(GatewayError, match=said):
        fetch(url)


def test_nobody_answers() -> None:
    with gateway(200, b"") as (url, _):
        pass
    with pytest.raises(GatewayError, match="is `wastegate up` running"):
        fetch(url)
