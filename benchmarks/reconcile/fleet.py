"""Four engines behind one gateway: vLLM with the plugin, llama.cpp, and two local ones. Processes only."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.engines import rivals
from benchmarks.engines.rivals import Contestant
from wastegate import site
from wastegate.local.models import Library

ROOT = Path(__file__).parent.parent.parent
MODEL = "smollm2-135m-instruct"
TOKEN = "reconcile"
PRICES = {"vllm": 3.0, "llamacpp": 2.0, "local-1": 1.0, "local-2": 1.0}
"""Made up, and different, so that no replica can pass for another."""
READY_SECONDS = 240.0


class Fleet:
    """What runs, and where."""

    def __init__(self, engines: dict[str, Contestant], url: str, admin: str, data: Path) -> None:
        self.engines = engines
        self.url = url
        self.admin = admin
        self.data = data

    @property
    def ledger(self) -> Path:
        return self.data / "ledger.db"


@contextmanager
def fleet(scratch: Path) -> Iterator[Fleet]:
    """All of it, from start to end."""
    model = Library(site.cache_dir()).pull(MODEL, lambda *_: None)
    cache = site.cache_dir() / "benchmarks"
    cache.mkdir(parents=True, exist_ok=True)
    with ExitStack() as ends:

        def started(engine: Contestant) -> Contestant:
            ends.callback(engine.end)
            return engine

        print("starting vLLM with the plugin …", flush=True)
        vllm = started(start_vllm(cache, model, scratch))
        print("starting llama.cpp and two local engines …", flush=True)
        engines = {"vllm": vllm, "llamacpp": started(rivals.start_llamacpp(cache, model, 4, scratch))}
        cores = sorted(os.sched_getaffinity(0))
        for number in (1, 2):
            core = str(cores[min(number, len(cores)) - 1])
            engines[f"local-{number}"] = started(rivals.start_ours(model, scratch, "--cores", core))
        with gateway(engines, scratch) as (url, admin):
            yield Fleet(engines, url, admin, scratch / "data")


def start_vllm(cache: Path, model: Path, scratch: Path) -> Contestant:
    """The plugin is installed into a folder of its own, as its page says, and leaves the other vLLMs without it."""
    python = rivals.environment(cache / f"vllm-{rivals.VLLM}", rivals.VLLM_PACKAGES, finish=rivals._finish_vllm)
    source, place = scratch / "source", scratch / "plugin"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    rivals.pip(python, "install", "--no-deps", "--no-build-isolation", "--target", str(place), str(source))
    return rivals.start_vllm(
        cache, model, 16, scratch,
        "--enforce-eager", "--block-size", "32", "--served-model-name", "exact", "--kv-cache-memory-bytes", "268435456",
        "--scheduler-cls", "wastegate.vllm_plugin.scheduler.Scheduler",
        context=1024,
        env={"PYTHONPATH": str(place), "VLLM_PLUGINS": "wastegate", "WASTEGATE_PLUGIN_TOKEN": TOKEN},
    )  # fmt: skip


@contextmanager
def gateway(engines: dict[str, Contestant], scratch: Path) -> Iterator[tuple[str, str]]:
    """`wastegate up` before them, once all are ready; (its address, the operator's)."""
    rows = [
        f'[[replicas]]\nname = "{name}"\nurl = "{engine.url}"\nprice_per_hour = {PRICES[name]}\n'
        f'models = ["{"exact" if name == "vllm" else "m"}"]\n'  # llama.cpp calls its model by the file's path
        for name, engine in engines.items()
    ]
    routes = (("vllm", "/v1/completions"), ("others", "/v1/chat/*"))
    named = [f'[[routes]]\nname = "{name}"\nmatch = "{match}"\n' for name, match in routes]
    config = scratch / "wastegate.toml"
    config.write_text("\n".join([f'[records]\ntoken = "{TOKEN}"\n', *named, *rows]))
    command = [sys.executable, "-m", "wastegate", "up", "--config", str(config), "--data", str(scratch / "data")]
    command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    log = scratch / "gateway.log"
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        match = re.match(r"ready (\S+) admin (\S+)", process.stdout.readline())
        if match is None:
            raise RuntimeError(f"the gateway did not start: {log.read_text()}")
        until = time.monotonic() + READY_SECONDS
        while sum(one["state"] == "ready" for one in get(match[2] + "/admin/state")["replicas"]) < len(engines):
            if time.monotonic() > until:
                raise RuntimeError("not all replicas became ready")
            time.sleep(0.2)
        yield match[1], match[2]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def get(url: str) -> dict[str, list[dict[str, object]]]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        told: dict[str, list[dict[str, object]]] = json.load(answer)
    return told
