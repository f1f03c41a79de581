"""The gateway's whole configuration as one value, put together from the rooms' own. It is read from no file here."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from msgspec import Struct

from wastegate.core.fleet import Replica
from wastegate.core.plan import Rules, Timers
from wastegate.core.world import Breaker, RetryBudget
from wastegate.gateway import children, control, devices, probe, recorder, records, shared, signals, telemetry
from wastegate.gateway.devices import Place
from wastegate.gateway.request import Route
from wastegate.gateway.serve import Limits
from wastegate.gateway.tls import Files
from wastegate.gateway.upstream import Access
from wastegate.levers import Config as Levers


class StartError(Exception):
    """The gateway cannot start; the text says why and what to do."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole gateway, validated. ``replicas`` empty means: start local ones."""

    data: Path
    listen: str = "127.0.0.1:8080"
    workers: int = 1
    control: control.Config = control.Config()
    limits: Limits = Limits()
    timers: Timers = Timers()
    rules: Rules = Rules()
    breaker: Breaker = Breaker()
    budget: RetryBudget = RetryBudget()
    probe: probe.Config = probe.Config()
    signals: signals.Config = signals.Config()
    devices: devices.Config = devices.Config()
    places: dict[str, Place] = {}
    """Where replicas' accelerators are measured, by the replica's name."""
    ledger: recorder.Config = recorder.Config()
    records: records.Config = records.Config()
    telemetry: telemetry.Config = telemetry.Config()
    levers: Levers = Levers()
    """For traffic that no route names; each of the routes has its own."""
    routes: tuple[Route, ...] = ()
    replicas: tuple[Replica, ...] = ()
    local: children.Config = children.Config()
    shared: shared.Config = shared.Config()
    tls: Files = Files()
    api_keys: tuple[str, ...] = ()
    """What clients must send one of; empty: anybody may call."""
    api_keys_env: str = ""
    access: dict[str, Access] = {}
    """By the replica's name."""
    source: str = ""
    """The file that all this was read from; empty: from none."""
    sha256: str = ""
    """Of that file's bytes."""

    @property
    def journal_path(self) -> Path:
        return Path(self.ledger.journal) if self.ledger.journal else self.data / "journal"

    @property
    def ledger_path(self) -> Path:
        return Path(self.ledger.path) if self.ledger.path else self.data / "ledger.db"


def address(listen: str) -> tuple[str, int]:
    """``host:port`` taken apart; an IPv6 host stands in brackets. Raises StartError."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise StartError(f"{listen!r} is not an address: write host:port, such as 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def is_local(host: str) -> bool:
    """Only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def url(host: str, port: int, tls: bool = False) -> str:
    """The address as clients write it."""
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
