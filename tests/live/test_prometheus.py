"""A real Prometheus scrapes a gateway and its engines: what its queries say is what the ledger has, within 1 %, and its
own tool accepts what we export and the rules that we give away."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fake_replica import FakeReplica, Json, Reply
from tests.gateway.running import chat, running
from tests.live.local_gateway import LocalGateway, until
from wastegate.core.fleet import Replica
from wastegate.core.ledger import NANO, Entry

SERVER, TOOL = shutil.which("prometheus"), shutil.which("promtool")
RULES = Path(__file__).parents[2] / "examples" / "prometheus" / "rules.yml"
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        SERVER is None or TOOL is None, reason="prometheus is not installed (Debian: apt-get install prometheus)"
    ),
]


class Prometheus:
    """A server that runs, for questions."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, query: str) -> float:
        """The one value of a query, 0 where there is none yet."""
        where = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(where, timeout=10) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        assert len(result) <= 1, f"{query} has {len(result)} values"
        return float(result[0]["value"][1]) if result else 0.0

    def ready(self, jobs: int) -> bool:
        """It answers, and has scraped so many targets."""
        try:
            return self.ask("sum(up)") == jobs
        except OSError:
            return False

    def comes_to(self, query: str, wanted: float) -> None:
        """Wait until a query says this, within 1 %."""
        until(lambda: self.ask(query) == pytest.approx(wanted, rel=0.01), f"{query} is {wanted}, not {self.ask(query)}")


@contextmanager
def prometheus(folder: Path, **jobs: str) -> Iterator[Prometheus]:
    """Scrapes each job's page ten times a second, and evaluates our rules as often."""
    rows = [
        f"- job_name: {name}\n  static_configs:\n  - targets: [{urllib.parse.urlsplit(url).netloc}]\n"
        for name, url in jobs.items()
    ]
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 100ms, scrape_timeout: 100ms, evaluation_interval: 100ms}\n"
        f"rule_files: [{RULES}]\nscrape_configs:\n{''.join(rows)}"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert SERVER is not None
    log = folder / "prometheus.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [SERVER, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/series",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=subprocess.DEVNULL, stderr=said,
        )  # fmt: skip
    try:
        server = Prometheus(f"http://127.0.0.1:{port}")
        until(lambda: server.ready(len(jobs)), f"it scrapes {list(jobs)}: see {log}", 60.0)
        yield server
    finally:
        process.kill()
        process.wait()


def accepted(page: bytes) -> None:
    """promtool has nothing to say against a page of metrics."""
    assert TOOL is not None
    told = subprocess.run([TOOL, "check", "metrics"], input=page, capture_output=True, timeout=30, check=False)
    assert (told.returncode, told.stdout + told.stderr) == (0, b"")


def page(url: str) -> bytes:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text: bytes = answer.read()
    return text


def tokens(entries: Sequence[Entry], of: Callable[[Any], int | None]) -> int:
    return sum(of(attempt) or 0 for entry in entries for attempt in entry.attempts)


def test_the_rules_are_good() -> None:
    assert TOOL is not None
    told = subprocess.run([TOOL, "check", "rules", RULES], capture_output=True, text=True, timeout=30, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "SUCCESS" in told.stdout


async def test_queries_of_the_gateway_give_the_ledgers_counts(tmp_path: Path) -> None:
    bad = [Reply(body=Json(status=500))] * 7
    async with FakeReplica() as good, FakeReplica(script=bad) as shaky:
        fleet = [Replica(f"r{number}", one.url, price=2 * NANO) for number, one in enumerate((good, shaky), 1)]
        async with running(tmp_path / "data", *fleet) as gateway:
            admin = gateway.gateway.admin_url

            def check(entries: list[Entry]) -> None:
                with prometheus(tmp_path, gateway=admin) as server:
                    for outcome in {entry.outcome for entry in entries}:
                        wanted = sum(entry.outcome == outcome for entry in entries)
                        server.comes_to(f'sum(wastegate_calls_total{{outcome="{outcome}"}})', wanted)
                    server.comes_to("sum(wastegate_attempts_total)", sum(len(entry.attempts) for entry in entries))
                    server.comes_to("wastegate_prompt_tokens_total", tokens(entries, lambda a: a.prompt_tokens))
                    server.comes_to("wastegate_output_tokens_total", tokens(entries, lambda a: a.output_tokens))
                    server.comes_to("wastegate_call_duration_seconds_count", len(entries))
                    whole = sum(entry.ended - entry.arrived for entry in entries)
                    server.comes_to("wastegate_call_duration_seconds_sum", whole)
                    server.comes_to("wastegate:fleet_dollars_per_hour", 4.0)
                accepted(page(admin))

            for number in range(60):
                await gateway.post(chat(f"{number}", stream=number % 2 == 0))
            entries = list(await gateway.closed(60))
            assert len({attempt.outcome for entry in entries for attempt in entry.attempts}) == 2, (
                "some were tried again"
            )
            await asyncio.to_thread(check, entries)


def test_queries_of_gateway_and_engines_give_the_ledgers_counts(two_replicas: LocalGateway, tmp_path: Path) -> None:
    engines = {name: replica["url"] for name, replica in two_replicas.replicas().items()}
    prompt, output = "wastegate_engine_prompt_tokens_total", "wastegate_engine_output_tokens_total"
    ours = ("wastegate_prompt_tokens_total", "wastegate_output_tokens_total", "sum(wastegate_calls_total)")
    names = [f"engine{number}" for number in range(len(engines))]
    with prometheus(tmp_path, gateway=two_replicas.admin, **dict(zip(names, engines.values(), strict=True))) as server:
        queries = (*ours, f"sum({prompt})", f"sum({output})", "sum(wastegate_engine_requests_total)")
        before = [server.ask(query) for query in queries]
        ids = [ask(two_replicas, number) for number in range(12)]
        entries = [two_replicas.entry(id) for id in ids]
        told = (tokens(entries, lambda a: a.prompt_tokens), tokens(entries, lambda a: a.output_tokens), len(ids))
        assert all(told)
        for query, was, more in zip(queries, before, (*told, *told), strict=True):
            server.comes_to(f"{query} - {was:.0f}", more)
    for url in (two_replicas.admin, *engines.values()):
        accepted(page(url))


def ask(gateway: LocalGateway, number: int) -> str:
    """One call; its id."""
    body = {"model": "smollm2-135m-instruct", "max_tokens": 8, "stream": number % 2 == 0,
            "messages": [{"role": "user", "content": f"Count from {number}."}]}  # fmt: skip
    request = urllib.request.Request(
        f"{gateway.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
        id: str = answer.headers["x-request-id"]
    return id
