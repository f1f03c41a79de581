"""Who is measured: how each gateway is installed, started and told of the replicas. Nothing is measured here.

Rivals come from the package registries at the pinned versions, each into a virtual environment of its own under
the cache folder, on first use. nginx is taken from PATH, or unpacked from Debian's package where apt is at hand.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO

import msgspec

from benchmarks.overhead.meter import tree

KEY = "sk-bench-not-a-secret"


class MissingError(Exception):
    """This peer cannot be had on this machine; the text says why."""


class Start(msgspec.Struct, frozen=True):
    """How to run a peer: its command and what its environment adds."""

    command: list[str]
    environment: dict[str, str] = {}


class Peer(msgspec.Struct, frozen=True):
    """A gateway. ``start(port, replicas, folder)`` prepares it (installing it if need be)."""

    name: str
    start: Callable[[int, list[int], Path], Start] | None
    """None: no gateway, the load talks to a replica."""
    rust: bool = False
    pace: float = 1.0
    """Share of the usual load: the slowest would only show its own queue at the full rate."""
    repeats: int | None = None
    """At most so many repeats (peers that no bar refers to)."""


def cache() -> Path:
    root = os.environ.get("WASTEGATE_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "wastegate") / "bench"


def environment(name: str, requirement: str) -> Path:
    """The bin folder of a virtual environment that holds ``requirement``; built if it is not there yet."""
    place = cache() / name
    if not (place / ".complete").exists():
        print(f"installing {requirement} into {place} (once)", file=sys.stderr, flush=True)
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", str(place)], [*pip, requirement]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
            if done.returncode:
                raise MissingError(f"{requirement} could not be installed: {done.stderr.strip()[-300:]}")
        (place / ".complete").touch()
    return place / "bin"


# ---- ours


def wastegate(*flags: str, settings: str = "") -> Callable[[int, list[int], Path], Start]:
    """``wastegate up`` as it comes: all that is on by default is on, and the calls go into a ledger of its own.
    ``settings``: more lines of its configuration."""

    def start(port: int, replicas: list[int], folder: Path) -> Start:
        rows = [f'[[replicas]]\nurl = "{url}"\nprice_per_hour = 1.0\n' for url in _urls(replicas)]
        file = folder / "wastegate.toml"
        file.write_text(settings + "".join(rows))
        argv = [sys.executable, "-m", "wastegate", "up", "--config", str(file), "--data", str(folder / "data")]
        return Start([*argv, "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{free_port()}", *flags])

    return start


# ---- rivals


def vllm_router(policy: str) -> Callable[[int, list[int], Path], Start]:
    def start(port: int, replicas: list[int], folder: Path) -> Start:
        binary = environment("vllm-router-0.1.17", "vllm-router==0.1.17") / "vllm-router"
        flags = f"--host 127.0.0.1 --port {port} --prometheus-port {free_port()} --log-level warning --policy {policy}"
        return Start([str(binary), *flags.split(), "--worker-urls", *_urls(replicas)])

    return start


def sglang_router(policy: str) -> Callable[[int, list[int], Path], Start]:
    def start(port: int, replicas: list[int], folder: Path) -> Start:
        binary = environment("sglang-router-0.3.2", "sglang-router==0.3.2") / "sglang-router"
        flags = f"launch --host 127.0.0.1 --port {port} --log-level warn --policy {policy}"
        metrics = f"--prometheus-host 127.0.0.1 --prometheus-port {free_port()}"
        return Start([str(binary), *flags.split(), *metrics.split(), "--worker-urls", *_urls(replicas)])

    return start


def litellm(port: int, replicas: list[int], folder: Path) -> Start:
    binary = environment("litellm-1.108.7", "litellm[proxy]==1.108.7") / "litellm"
    shared = {"model": "openai/mock", "api_key": "sk-x", "input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6}
    models = [{"model_name": "mock", "litellm_params": {**shared, "api_base": f"{url}/v1"}} for url in _urls(replicas)]
    file = folder / "litellm.yaml"  # JSON is YAML
    file.write_bytes(msgspec.json.encode({"model_list": models, "litellm_settings": {"telemetry": False}}))
    flags = f"--host 127.0.0.1 --port {port} --num_workers 1 --telemetry False --config"
    quiet = {
        "LITELLM_MASTER_KEY": KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "NO_DOCS": "True",
        "DISABLE_ADMIN_UI": "True",
    }
    return Start([str(binary), *flags.split(), str(file)], quiet)


NGINX = """worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log warn;
worker_rlimit_nofile 20000;
{user}
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  keepalive_requests 100000000;
  client_max_body_size 64m;
  client_body_buffer_size 256k;
  upstream replicas {{ {servers} keepalive 2048; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""


def nginx(port: int, replicas: list[int], folder: Path) -> Start:
    binary = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or _unpacked_nginx()
    servers = " ".join(f"server 127.0.0.1:{replica} max_fails=0;" for replica in replicas)
    user = "user root;" if os.geteuid() == 0 else ""
    file = folder / "nginx.conf"
    file.write_text(NGINX.format(folder=folder, user=user, servers=servers, port=port))
    return Start([binary, "-e", str(folder / "nginx.log"), "-c", str(file)])


def _unpacked_nginx() -> str:
    """nginx out of Debian's package, unpacked under the cache folder: nothing is installed on the machine."""
    place = cache() / "nginx-light"
    binary = place / "usr" / "sbin" / "nginx"
    if not binary.exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise MissingError("nginx is not in PATH and this machine has no apt to fetch it with")
        place.mkdir(parents=True, exist_ok=True)
        for command in (["apt-get", "download", "nginx"], ["apt-get", "download", "nginx-light"]):
            subprocess.run(command, cwd=place, capture_output=True, timeout=300)
        for package in place.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(place)], capture_output=True, timeout=60)
        if not binary.exists():
            raise MissingError("nginx is not in PATH and its Debian package could not be fetched")
    return str(binary)


def command(text: str) -> Callable[[int, list[int], Path], Start]:
    """Any other gateway: a command line with {port}, {ports} (the replicas', comma-separated) and {folder}."""

    def start(port: int, replicas: list[int], folder: Path) -> Start:
        ports = ",".join(map(str, replicas))
        return Start([part.format(port=port, ports=ports, folder=folder) for part in text.split()])

    return start


DIRECT = Peer("direct", None)
OURS = Peer("wastegate", wastegate())
PEERS = (
    DIRECT,
    OURS,
    Peer("vllm-router rr", vllm_router("round_robin"), rust=True),
    Peer("vllm-router cache", vllm_router("cache_aware"), rust=True),
    Peer("sglang-router rr", sglang_router("round_robin"), rust=True),
    Peer("sglang-router cache", sglang_router("cache_aware"), repeats=1),
    Peer("nginx", nginx),
    Peer("litellm", litellm, pace=0.1, repeats=1),
)
QUICK = ("direct", "wastegate", "vllm-router rr")


class Running:
    """A started peer, pinned to one core, its output in a log of its own."""

    def __init__(self, peer: Peer, replicas: list[int], folder: Path, core: int) -> None:
        self.peer, self.pid, self.port = peer, 0, replicas[0]
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "log"
        if peer.start is None:
            return
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        start = peer.start(self.port, replicas, folder)
        with self._log.open("wb") as log:
            self._process = pinned(core, start.command, stdout=log, environment=start.environment)
        self.pid = self._process.pid

    def wait_ready(self, seconds: float = 60) -> None:
        """Until it answers a chat completion. Raises MissingError with the end of its log."""
        body = '{"model":"mock","messages":[{"role":"user","content":"hi"}],"max_tokens":2}'
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if self.ended:
                raise MissingError(self.ended)
            connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
            try:
                connection.request("POST", "/v1/chat/completions", body, headers)
                if connection.getresponse().status == 200:
                    return
            except (OSError, HTTPException):
                pass
            finally:
                connection.close()
            time.sleep(0.1)
        raise MissingError(f"{self.peer.name} did not answer: {self._tail()}")

    @property
    def ended(self) -> str:
        """Empty while it runs; else how it ended, and the end of its log."""
        code = self._process.poll() if self._process is not None else None
        return "" if code is None else f"{self.peer.name} ended with code {code}: {self._tail()}"

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-500:] if self._log.exists() else "no output"

    def stop(self) -> None:
        if self._process is None:
            return
        pids = tree(self.pid)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            pass
        for pid in pids:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        self._process.wait()


def pinned(
    core: int,
    argv: list[str],
    *,
    stdout: int | IO[bytes],
    environment: dict[str, str] | None = None,
    pipe: bool = False,
) -> subprocess.Popen[bytes]:
    """Start ``argv`` on ``core``: a child inherits the affinity that we have at that moment."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if pipe else subprocess.DEVNULL,
            stdout=stdout,
            stderr=None if stdout == subprocess.PIPE else subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _urls(replicas: list[int]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in replicas]
