"""Configurations shown and compared in words, with every secret masked, and what a new one cannot change while the
gateway runs. Nothing is read or changed here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.fleet import Replica
from wastegate.core.ledger import NANO
from wastegate.gateway.config import Config
from wastegate.gateway.devices import Place
from wastegate.gateway.upstream import Access

_MASK = "***"
_NAMES_A_SECRET = re.compile(r"token|key|secret|password", re.IGNORECASE)


class _Secret(Struct, frozen=True):
    """Compared like any other value, but never shown."""

    value: tuple[str, ...]

    def __str__(self) -> str:
        return _MASK if any(self.value) else ""


def in_force(running: Config, new: Config) -> Config:
    """``new``, but for what a running gateway cannot change: that stays as it is in ``running``."""
    kept = replace(
        new,
        listen=running.listen,
        workers=running.workers,
        data=running.data,
        local=running.local,
        control=replace(new.control, listen=running.control.listen),
        ledger=replace(running.ledger, when_full=new.ledger.when_full),
        shared=running.shared,
        telemetry=running.telemetry,
    )
    if new.tls.on != running.tls.on:
        kept = replace(kept, tls=running.tls)
    if bool(new.replicas) != bool(running.replicas):  # between local replicas and configured ones
        kept = replace(kept, replicas=running.replicas, access=running.access, places=running.places)
    return kept


def shown(config: Config) -> dict[str, Any]:
    """The whole configuration as JSON has it, by the sections of wastegate.toml."""
    return {name: _masked(section) for name, section in _sections(config).items()}


def compare(old: Config, new: Config) -> tuple[str, ...]:
    """A line for each difference: ``[timers] total: 600 → 300``. Secrets are only said to have changed."""
    return tuple(_differences(_sections(old), _sections(new)))


def _sections(config: Config) -> dict[str, Any]:
    plain = msgspec.to_builtins
    control = config.control
    local = plain(config.local)
    return {
        "gateway": {
            "listen": config.listen,
            "workers": config.workers,
            "data": str(config.data),
            "tls_cert": config.tls.cert,
            "tls_key": config.tls.key,
            "tls_sha256": config.tls.sha256,
            "api_keys_env": config.api_keys_env,
            "api_keys": _Secret(config.api_keys),
        },
        "admin": {**plain(control), "token": _Secret((control.token,))},
        "limits": plain(config.limits),
        "timers": plain(config.timers),
        "retry": plain(config.rules),
        "retry_budget": plain(config.budget),
        "breaker": plain(config.breaker),
        "probe": plain(config.probe),
        "signals": plain(config.signals),
        "devices": {**plain(config.devices), "redis": _Secret((config.devices.redis,))},
        "ledger": plain(config.ledger),
        "records": {**plain(config.records), "token": _Secret((config.records.token,))},
        "telemetry": {
            **plain(config.telemetry),
            "headers": _Secret(tuple(f"{name}={value}" for name, value in sorted(config.telemetry.headers.items()))),
        },
        "shared": {**plain(config.shared), "redis": _Secret((config.shared.redis,))},
        "levers": plain(config.levers),
        "routes": [plain(route) for route in config.routes],
        "replicas": [_replica(replica, config) for replica in config.replicas],
        "local": {**local, "arguments": _arguments(config.local.arguments)},
    }


def _replica(replica: Replica, config: Config) -> dict[str, Any]:
    access, place = config.access.get(replica.name, Access()), config.places.get(replica.name, Place())
    described = msgspec.to_builtins(replica)
    return {
        **{key: value for key, value in described.items() if key != "price"},
        "price_per_hour": replica.price / NANO,
        "ca_file": access.ca_file,
        "ca": _Secret((access.ca,)),
        "api_key_env": access.api_key_env,
        "api_key": _Secret((access.api_key,)),
        **msgspec.to_builtins(place),
    }


def _arguments(arguments: Sequence[str]) -> list[Any]:
    """A local engine's own arguments; what follows ``--…-token`` and its like is a secret."""
    out: list[Any] = []
    hide = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if hide:
            out.append(_Secret((argument,)))
        elif equals and name.startswith("-") and _NAMES_A_SECRET.search(name):
            out += [f"{name}=", _Secret((value,))]
        else:
            out.append(argument)
        hide = not hide and not equals and name.startswith("-") and bool(_NAMES_A_SECRET.search(name))
    return out


def _masked(value: Any) -> Any:
    if isinstance(value, _Secret):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _masked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item) for item in value]
    return value


def _differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    for section, before in old.items():
        after = new[section]
        if isinstance(before, Mapping):
            yield from _members(f"[{section}] ", before, after)
        else:
            yield from _rows(section.removesuffix("s"), before, after)


def _rows(kind: str, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Iterator[str]:
    """Routes and replicas: added, removed, changed, or in another order."""
    before, after = _by_name(old), _by_name(new)
    for name, row in before.items():
        if name not in after:
            yield f"{kind} {name}: removed"
        else:
            yield from _members(f"{kind} {name}: ", row, after[name])
    for name, row in after.items():
        if name not in before:
            yield f"{kind} {name}: added ({row.get('url') or row.get('match')})"
    if kind == "route" and before.keys() == after.keys() and list(before) != list(after):
        yield f"routes: now in the order {', '.join(after)}"


def _by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Several routes may have one name: then their number is added."""
    named: dict[str, dict[str, Any]] = {}
    for row in rows:
        name, number = row["name"], 1
        while name in named:
            number += 1
            name = f"{row['name']} ({number})"
        named[name] = row
    return named


def _members(where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for key, before in old.items():
        after = new[key]
        if before == after:
            continue
        if isinstance(before, Mapping):
            yield from _members(f"{where}{key}.", before, after)
        elif isinstance(before, _Secret):
            yield f"{where}{key}: {_secretly(before, after)}"
        else:
            yield f"{where}{key}: {_say(before)} → {_say(after)}"


def _secretly(old: _Secret, new: _Secret) -> str:
    if not str(old):
        return "set"
    return "changed" if str(new) else "removed"


def _say(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value == "":
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
