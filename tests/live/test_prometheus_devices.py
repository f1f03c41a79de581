"""A real Prometheus server between a DCGM exporter and the gateway: what it scraped is what the gateway shows."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines.pages import devices_text
from tests.fake_replica import FakeReplica, Json, Reply
from wastegate.core.fleet import Replica
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.gateway.devices import Config, Gauges, Place
from wastegate.gateway.pushed import Board

SERVER = shutil.which("prometheus")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(SERVER is None, reason="prometheus is not installed (Debian: apt-get install prometheus)"),
]


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Scrapes the target every fifth of a second."""
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 200ms}\nscrape_configs:\n- job_name: dcgm\n  static_configs:\n"
        f'  - targets: ["{target}"]\n    labels: {{cluster: "a"}}\n'
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert SERVER is not None
    process = subprocess.Popen(
        [SERVER, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def test_what_it_scraped_is_what_is_shown(tmp_path: Path) -> None:
    text = devices_text("dcgm-4.8.prom")
    used: list[float] = []
    world = World(Breaker(), RetryBudget())
    world.set_fleet([Replica("r1", "http://x"), Replica("r2", "http://y")])
    async with FakeReplica() as exporter:
        exporter.pages["/metrics"] = Reply(
            body=Json(body=text.encode()), headers=(("content-type", "text/plain; version=0.0.4"),)
        )
        with prometheus(tmp_path, exporter.url.removeprefix("http://")) as url:
            config = Config(prometheus=url, prometheus_match='cluster="a"')
            gauges = Gauges(world, config, time.time, lambda name, joules: used.append(joules), Board(time.time))
            gauges.places = {"r1": Place(devices=("GPU-11111111-aaaa",)), "r2": Place(devices=("GPU-none",))}
            gauges.open()
            try:
                async with asyncio.timeout(30):
                    while (load := gauges.load("r1")) is None:
                        await gauges.look()
                        await asyncio.sleep(0.1)
                    exporter.pages["/metrics"] = Reply(
                        body=Json(body=text.replace(" 123456789\n", " 123956789\n").encode()),
                        headers=(("content-type", "text/plain; version=0.0.4"),),
                    )
                    while not any(used):
                        await gauges.look()
                        await asyncio.sleep(0.1)
            finally:
                await gauges.stop()
    assert (load.source, load.devices, load.power, load.busy, load.tensor) == ("prometheus", 1, 312.5, 0.875, 0.125)
    assert load.memory_total == 80 * 2**30
    assert sum(used) == pytest.approx(500.0)
    assert gauges.load("r2") is None
