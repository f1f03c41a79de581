"""wastegate.toml and the environment, read into frozen values. The only reader of either; nothing else looks there."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.fleet import Replica
from wastegate.core.ledger import NANO
from wastegate.core.plan import Rules, Timers
from wastegate.core.prices import PriceError, find_price
from wastegate.core.world import Breaker, RetryBudget
from wastegate.gateway import children, config, control, probe, recorder
from wastegate.gateway.request import Route
from wastegate.gateway.serve import Limits
from wastegate.gateway.upstream import Origin, UrlError


class ConfigError(ValueError):
    """The configuration cannot be used. The text names file, line and what to write instead."""


class _Gateway(Struct, frozen=True, forbid_unknown_fields=True):
    listen: str = "127.0.0.1:8080"
    data: str = ""
    workers: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= 64:
            raise ValueError(f"workers is {self.workers}: from 1 to 64 processes can serve")


class _Replica(Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    name: str = ""
    models: tuple[str, ...] = ()
    engine: str = ""
    price_per_hour: float | None = None
    accelerator: str = ""
    cap: int | None = None


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """wastegate.toml, section by section."""

    gateway: _Gateway = _Gateway()
    admin: control.Config = control.Config()
    limits: Limits = Limits()
    timers: Timers = Timers()
    retry: Rules = Rules()
    retry_budget: RetryBudget = RetryBudget()
    breaker: Breaker = Breaker()
    probe: probe.Config = probe.Config()
    ledger: recorder.Config = recorder.Config()
    routes: tuple[Route, ...] = ()
    replicas: tuple[_Replica, ...] = ()
    local: children.Config = children.Config()


class Site(Struct, frozen=True):
    """Everything that a command may need to know of where it runs."""

    gateway: config.Config
    data: Path
    cache: Path
    source: str = ""
    """The file that was read, if any."""

    @property
    def ledger(self) -> Path:
        return self.gateway.ledger_path


def cache_dir() -> Path:
    """Where downloads are kept: $WASTEGATE_CACHE, else the user's cache folder."""
    return _directory("WASTEGATE_CACHE", "XDG_CACHE_HOME", ".cache")


def data_dir() -> Path:
    """Where the ledger lives: $WASTEGATE_DATA, else the user's data folder."""
    return _directory("WASTEGATE_DATA", "XDG_DATA_HOME", ".local/share")


def certificates() -> str:
    """The certificate authorities that the user's environment names for downloads, or empty."""
    return os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE") or ""


def model_hub() -> str:
    """The model hub that the user's environment names in place of the usual one, or empty."""
    return os.environ.get("HF_ENDPOINT", "")


def _directory(own: str, shared: str, fallback: str) -> Path:
    if os.environ.get(own):
        return Path(os.environ[own]).expanduser()
    base = os.environ.get(shared)
    return (Path(base) if base else Path.home() / fallback) / "wastegate"


def load(
    path: Path | None = None,
    *,
    listen: str | None = None,
    admin: str | None = None,
    data: Path | None = None,
    workers: int | None = None,
) -> Site:
    """Read the configuration: ``path``, else $WASTEGATE_CONFIG, else ./wastegate.toml, else the defaults.

    The other arguments go over what the file says. Raises ConfigError where a named file is missing, or anything in
    it is wrong.
    """
    if path is None and os.environ.get("WASTEGATE_CONFIG"):
        path = Path(os.environ["WASTEGATE_CONFIG"])
    if path is None and Path("wastegate.toml").is_file():
        path = Path("wastegate.toml")
    text = ""
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: is not UTF-8 (byte {error.start})") from None
    over = {"listen": listen, "data": str(data) if data is not None else None, "workers": workers}
    return parse(text, str(path) if path is not None else "", over, admin)


def parse(text: str, name: str, over: Mapping[str, object] | None = None, admin: str | None = None) -> Site:
    """The same from the text of a file called ``name``."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: {error}") from None
    where = _Lines(text, name)
    _check_names(raw, _File, (), where)
    try:
        file = msgspec.convert(raw, _File, strict=True)
    except msgspec.ValidationError as error:
        message, _, at = str(error).partition(" - at `$")
        raise ConfigError(f"{where.of(_path(at))}: {message[:1].lower() + message[1:]}{_named(at)}") from None
    given = {key: value for key, value in (over or {}).items() if value is not None}
    try:
        file = replace(file, gateway=replace(file.gateway, **given))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if admin is not None:
        file = replace(file, admin=replace(file.admin, listen=admin))
    try:
        return _site(file, name)
    except ConfigError:
        raise
    except (ValueError, config.StartError) as error:
        raise ConfigError(f"{name}: {error}") from None


def _site(file: _File, name: str) -> Site:
    data = Path(file.gateway.data).expanduser() if file.gateway.data else data_dir()
    config.address(file.gateway.listen)
    host, _ = config.address(file.admin.listen)
    if host not in ("127.0.0.1", "::1", "localhost") and not file.admin.token:
        raise ConfigError(f"{name}: [admin] listens on {host}, which others can reach: set a token for it")
    gateway = config.Config(
        data=data,
        listen=file.gateway.listen,
        workers=file.gateway.workers,
        control=file.admin,
        limits=file.limits,
        timers=file.timers,
        rules=file.retry,
        breaker=file.breaker,
        budget=file.retry_budget,
        probe=file.probe,
        ledger=file.ledger,
        routes=file.routes,
        replicas=tuple(_replicas(file.replicas, name)),
        local=file.local,
    )
    return Site(gateway, data, cache_dir(), name)


def _replicas(rows: tuple[_Replica, ...], file: str) -> Iterator[Replica]:
    taken: set[str] = set()
    for number, row in enumerate(rows, 1):
        name = row.name or f"replica-{number}"
        if name in taken:
            raise ConfigError(f"{file}: two replicas are called {name!r}: give each a name of its own")
        taken.add(name)
        try:
            Origin(row.url)
            price = row.price_per_hour if row.price_per_hour is not None else _catalogue_price(row.accelerator)
        except (UrlError, PriceError) as error:
            raise ConfigError(f"{file}: replica {name!r}: {error}") from None
        yield Replica(name, row.url, row.models, row.engine, round(price * NANO), row.accelerator, row.cap)


def _catalogue_price(accelerator: str) -> float:
    """US dollars an hour; 0 where no accelerator is named: the audit then shows the replica as unpriced."""
    return find_price(accelerator) if accelerator else 0.0


# ---- errors that say where


class _Lines:
    """Finds the line on which a key stands."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._lines: dict[tuple[str | int, ...], int] = {}
        table: tuple[str | int, ...] = ()
        counts: dict[tuple[str, ...], int] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if header := re.match(r"\s*\[\[([^\]]+)\]\]", line):
                names = _split(header[1])
                counts[names] = counts.get(names, -1) + 1
                table = (*names, counts[names])
                self._lines.setdefault(table, number)
            elif header := re.match(r"\s*\[([^\]]+)\]", line):
                table = _split(header[1])
                self._lines.setdefault(table, number)
            elif key := re.match(r"\s*([A-Za-z0-9_\-\".]+)\s*=", line):
                self._lines.setdefault((*table, *_split(key[1])), number)

    def of(self, path: tuple[str | int, ...]) -> str:
        """``file:line`` of the key, or of the nearest table around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return f"{self._name}:{self._lines[path]}" if path else self._name


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip('"') for part in dotted.split("."))


def _path(at: str) -> tuple[str | int, ...]:
    """``.replicas[1].url`` as msgspec writes it, taken apart."""
    parts = re.findall(r"\.([A-Za-z0-9_\-]+)|\[(\d+)\]", at)
    return tuple(name or int(index) for name, index in parts)


def _named(at: str) -> str:
    path = at.rstrip("`").lstrip(".")
    return f" (at {path})" if path else ""


def _check_names(raw: Any, kind: Any, path: tuple[str | int, ...], where: _Lines) -> None:
    """Raise ConfigError at the first key that ``kind`` does not have, with the nearest one that it has."""
    struct = _struct(kind)
    if struct is None:
        return
    if isinstance(raw, list):
        for index, item in enumerate(raw):
            _check_names(item, struct, (*path, index), where)
        return
    if not isinstance(raw, Mapping):
        return  # of the wrong type: the conversion says so
    hints = get_type_hints(struct)
    for key, value in raw.items():
        if key not in hints:
            near = difflib.get_close_matches(key, hints, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"valid here: {', '.join(sorted(hints))}"
            inside = ".".join(str(part) for part in path)
            place = f" in [{inside}]" if inside else ""
            raise ConfigError(f"{where.of((*path, key))}: unknown key {key!r}{place}; {hint}")
        _check_names(value, hints[key], (*path, key), where)


def _struct(kind: Any) -> type[Struct] | None:
    """The Struct inside a type such as ``tuple[Route, ...]`` or ``Timers | None``."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind
    if get_origin(kind) in (tuple, list, Union, UnionType):
        return next((s for s in map(_struct, get_args(kind)) if s is not None), None)
    return None
