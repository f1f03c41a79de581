"""wastegate.toml and the environment, read into frozen values. The only reader of either; nothing else looks there."""

from __future__ import annotations

import hashlib
import os
import re
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.fleet import Replica
from wastegate.core.ledger import NANO
from wastegate.core.plan import Rules, Timers
from wastegate.core.prices import PriceError, find_price
from wastegate.core.world import Breaker, RetryBudget
from wastegate.gateway import (
    children,
    config,
    control,
    devices,
    probe,
    recorder,
    records,
    shared,
    signals,
    telemetry,
    tls,
)
from wastegate.gateway.request import Route
from wastegate.gateway.serve import Limits
from wastegate.gateway.upstream import Access, Origin, UrlError
from wastegate.levers import Config as Levers
from wastegate.places import Lines, UnknownKeyError, check_names, explain

_QUIET_SECONDS = 0.25
"""A file that was written to less long ago may be half of what its editor means to save."""
_PATIENCE_SECONDS = 3.0
_LOOK_SECONDS = 0.05


class ConfigError(ValueError):
    """The configuration cannot be used. The text names file, line and what to write instead."""


class _Gateway(Struct, frozen=True, forbid_unknown_fields=True):
    listen: str = "127.0.0.1:8080"
    data: str = ""
    workers: int = 1
    tls_cert: str = ""
    tls_key: str = ""
    api_keys_env: str = ""

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
    ca_file: str = ""
    api_key_env: str = ""
    dcgm: str = ""
    devices: tuple[str, ...] = ()


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
    signals: signals.Config = signals.Config()
    devices: devices.Config = devices.Config()
    ledger: recorder.Config = recorder.Config()
    records: records.Config = records.Config()
    telemetry: telemetry.Config = telemetry.Config()
    levers: Levers = Levers()
    routes: tuple[Route, ...] = ()
    replicas: tuple[_Replica, ...] = ()
    local: children.Config = children.Config()
    shared: shared.Config = shared.Config()


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
    again: bool = False,
) -> Site:
    """Read the configuration: ``path``, else $WASTEGATE_CONFIG, else ./wastegate.toml, else the defaults.

    The other arguments go over what the file says. ``again``: somebody runs by an earlier state of the file, so one
    that is being saved at this moment is waited for, some seconds at most, and an empty one is no configuration.
    Raises ConfigError where a named file is missing, or anything in it is wrong.
    """
    path = _found(path)
    over = {"listen": listen, "data": str(data) if data is not None else None, "workers": workers}
    if path is None:
        return parse("", "", over, admin)
    written, text = _read(path, again)
    if again and not text.strip():
        raise ConfigError(f"{path}: is empty; write at least [gateway] if all defaults are what you want")
    site = parse(text, str(path), over, admin)
    return replace(site, gateway=replace(site.gateway, sha256=hashlib.sha256(written).hexdigest()))


def ledger_of(path: Path | None = None) -> Path:
    """Where the gateway that ``load`` would configure keeps its ledger. Who only reads that needs none of the
    gateway's secrets and certificates. Raises ConfigError."""
    path = _found(path)
    file, _ = _shaped(_read(path)[1], str(path)) if path is not None else (_File(), None)
    return Path(file.ledger.path or _data(file) / "ledger.db")


def admin_of(path: Path | None = None) -> tuple[str, str]:
    """Where the operator of the gateway that ``load`` would configure asks, and with which token. Who only asks needs
    none of its other secrets. Raises ConfigError."""
    path = _found(path)
    name = str(path) if path is not None else "defaults"
    file, where = _shaped(_read(path)[1], name) if path is not None else (_File(), Lines("", name))
    try:
        admin = _control(file.admin, name, _Secrets(os.environ, where))
        host, port = config.address(admin.listen)
    except config.StartError as error:
        raise ConfigError(f"{name}: {error}") from None
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return config.url(here, port), admin.token


def _found(path: Path | None) -> Path | None:
    if path is None and os.environ.get("WASTEGATE_CONFIG"):
        return Path(os.environ["WASTEGATE_CONFIG"])
    if path is None and Path("wastegate.toml").is_file():
        return Path("wastegate.toml")
    return path


def _read(path: Path, again: bool = False) -> tuple[bytes, str]:
    try:
        written = _settled(path) if again else path.read_bytes()
        return written, written.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 (byte {error.start})") from None


def _settled(path: Path) -> bytes:
    """The file once nobody writes to it. Raises OSError, or ConfigError where it does not come to rest."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            before = path.stat()
            written = path.read_bytes()
            after = path.stat()
            if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size) and not (
                0 <= time.time() - after.st_mtime < _QUIET_SECONDS
            ):
                return written
        except FileNotFoundError:  # some editors move the old file away before they write the new one
            if time.monotonic() > deadline - _PATIENCE_SECONDS + 2 * _QUIET_SECONDS:
                raise
        if time.monotonic() > deadline:
            raise ConfigError(f"{path}: is still being written to; reload once it is saved")
        time.sleep(_LOOK_SECONDS)


def parse(
    text: str,
    name: str,
    over: Mapping[str, object] | None = None,
    admin: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Site:
    """The same from the text of a file called ``name``. ``environ``: where secrets are looked up, if not in the
    process's own environment."""
    file, where = _shaped(text, name)
    given = {key: value for key, value in (over or {}).items() if value is not None}
    try:
        file = replace(file, gateway=replace(file.gateway, **given))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if admin is not None:
        file = replace(file, admin=replace(file.admin, listen=admin))
    try:
        return _site(file, name, _Secrets(os.environ if environ is None else environ, where))
    except ConfigError:
        raise
    except (ValueError, config.StartError) as error:
        raise ConfigError(f"{name}: {error}") from None


def _shaped(text: str, name: str) -> tuple[_File, Lines]:
    """The file by itself: names and types are right. Raises ConfigError."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: {error}") from None
    where = Lines(text, name)
    try:
        check_names(raw, _File, (), where)
        return msgspec.convert(_with_common(raw), _File, strict=True), where
    except UnknownKeyError as error:
        raise ConfigError(str(error)) from None
    except msgspec.ValidationError as error:
        raise ConfigError(explain(error, where)) from None


def _with_common(raw: dict[str, Any]) -> dict[str, Any]:
    """A route's timers and levers are those of [timers] and [levers], but for what it sets itself."""
    for route in raw.get("routes", []):
        if isinstance(route, dict):
            for name in ("timers", "levers"):
                if name in raw or name in route:
                    route[name] = _over(raw.get(name, {}), route.get(name, {}))
    return raw


def _over(common: Any, own: Any) -> Any:
    """Tables within tables are merged; whatever is no table replaces what stands there."""
    if not isinstance(common, dict) or not isinstance(own, dict):
        return own
    return {**common, **{key: _over(common.get(key), value) for key, value in own.items()}}


def _data(file: _File) -> Path:
    return Path(file.gateway.data).expanduser() if file.gateway.data else data_dir()


def _site(file: _File, name: str, secrets: _Secrets) -> Site:
    data = _data(file)
    config.address(file.gateway.listen)
    files = tls.Files(_home(file.gateway.tls_cert), _home(file.gateway.tls_key))
    if files.on:
        files = replace(files, sha256=tls.load(files).sha256)
    access = dict(_access(file.replicas, secrets))
    gateway = config.Config(
        data=data,
        listen=file.gateway.listen,
        workers=file.gateway.workers,
        control=_control(file.admin, name, secrets),
        limits=file.limits,
        timers=file.timers,
        rules=file.retry,
        breaker=file.breaker,
        budget=file.retry_budget,
        probe=file.probe,
        signals=file.signals,
        devices=_devices(file.devices, name, secrets),
        places=_places(file.replicas),
        records=_records(file.records, name, secrets),
        ledger=file.ledger,
        telemetry=_telemetry(file.telemetry, secrets),
        levers=file.levers,
        routes=file.routes,
        replicas=tuple(_replicas(file.replicas, name, access)),
        local=file.local,
        shared=_shared(file.shared, name, secrets),
        tls=files,
        api_keys=secrets.listed(file.gateway.api_keys_env, ("gateway", "api_keys_env")),
        api_keys_env=file.gateway.api_keys_env,
        access=access,
        source=name,
    )
    return Site(gateway, data, cache_dir(), name)


def _home(path: str) -> str:
    return str(Path(path).expanduser()) if path else ""


def _shared(given: shared.Config, name: str, secrets: _Secrets) -> shared.Config:
    if given.redis and given.redis_env:
        raise ConfigError(f"{name}: [shared] has both redis and redis_env: keep one")
    redis = given.redis or secrets.one(given.redis_env, ("shared", "redis_env"))
    try:
        return replace(given, redis=redis)
    except ValueError as error:  # what the environment holds; the error never quotes it
        raise ConfigError(f"{name}: [shared] redis_env: {error}") from None


def _devices(given: devices.Config, name: str, secrets: _Secrets) -> devices.Config:
    if given.redis and given.redis_env:
        raise ConfigError(f"{name}: [devices] has both redis and redis_env: keep one")
    try:
        return replace(given, redis=given.redis or secrets.one(given.redis_env, ("devices", "redis_env")))
    except ValueError as error:  # what the environment holds; the error never quotes it
        raise ConfigError(f"{name}: [devices] redis_env: {error}") from None


def _places(rows: tuple[_Replica, ...]) -> dict[str, devices.Place]:
    """Where accelerators are measured, by the replica's name."""
    return {
        _name(row, number): devices.Place(row.dcgm, row.devices)
        for number, row in enumerate(rows)
        if row.dcgm or row.devices
    }


def _control(admin: control.Config, name: str, secrets: _Secrets) -> control.Config:
    if admin.token and admin.token_env:
        raise ConfigError(f"{name}: [admin] has both token and token_env: keep one, better token_env")
    token = admin.token or secrets.one(admin.token_env, ("admin", "token_env"))
    host, _ = config.address(admin.listen)
    if not config.is_local(host) and not token:
        raise ConfigError(f"{name}: [admin] listens on {host}, which others can reach: set token_env or token for it")
    return replace(admin, token=token)


def _telemetry(given: telemetry.Config, secrets: _Secrets) -> telemetry.Config:
    setting = ("telemetry", "headers_env")
    text = secrets.one(given.headers_env, setting)
    try:
        more = telemetry.headers_of(text)
    except ValueError as error:
        raise ConfigError(f"{secrets.where(setting)}: ${given.headers_env} cannot be used: {error}") from None
    return replace(given, headers={**given.headers, **more})


def _records(given: records.Config, name: str, secrets: _Secrets) -> records.Config:
    if given.token and given.token_env:
        raise ConfigError(f"{name}: [records] has both token and token_env: keep one, better token_env")
    return replace(given, token=given.token or secrets.one(given.token_env, ("records", "token_env")))


class _Secrets:
    """Looks up what a setting only names. What it finds, or is given by mistake, is repeated in no message."""

    def __init__(self, environ: Mapping[str, str], where: Lines) -> None:
        self._environ = environ
        self._where = where

    def where(self, setting: tuple[str | int, ...]) -> str:
        """File and line."""
        return self._where.of(setting)

    def one(self, name: str, setting: tuple[str | int, ...]) -> str:
        """The variable's value; empty where none is named. Raises ConfigError."""
        if not name:
            return ""
        value = self._environ.get(name, "").strip()
        if not value:
            # Somebody may have written the secret itself here: only what looks like a name is repeated.
            said = f"${name}, which" if re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) else "an environment variable that"
            raise ConfigError(
                f"{self.where(setting)}: {setting[-1]} names {said} is not set: it takes a variable's name, not the "
                "secret itself, and the variable must be set before wastegate starts"
            )
        return value

    def listed(self, name: str, setting: tuple[str | int, ...]) -> tuple[str, ...]:
        """The values between its commas. Raises ConfigError."""
        values = tuple(value.strip() for value in self.one(name, setting).split(",") if value.strip())
        if name and not values:
            raise ConfigError(f"{self.where(setting)}: ${name} holds no key, only commas")
        if not all(re.fullmatch(r"[\x21-\x7e]+", value) for value in values):
            problem = f"a key in ${name} holds blanks or signs that no header can carry"
            raise ConfigError(f"{self.where(setting)}: {problem}")
        return values


def _access(rows: tuple[_Replica, ...], secrets: _Secrets) -> Iterator[tuple[str, Access]]:
    for number, row in enumerate(rows):
        authorities = ""
        ca_file = _home(row.ca_file)
        if ca_file:
            try:
                authorities = Path(ca_file).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                where = secrets.where(("replicas", number, "ca_file"))
                why = error.strerror if isinstance(error, OSError) else "not PEM"
                raise ConfigError(f"{where}: ca_file {ca_file} cannot be read ({why})") from None
        key = secrets.one(row.api_key_env, ("replicas", number, "api_key_env"))
        if key or ca_file:
            yield _name(row, number), Access(key, row.api_key_env, ca_file, authorities)


def _name(row: _Replica, number: int) -> str:
    return row.name or f"replica-{number + 1}"


def _replicas(rows: tuple[_Replica, ...], file: str, access: Mapping[str, Access]) -> Iterator[Replica]:
    taken: set[str] = set()
    for number, row in enumerate(rows):
        name = _name(row, number)
        if name in taken:
            raise ConfigError(f"{file}: two replicas are called {name!r}: give each a name of its own")
        taken.add(name)
        try:
            Origin(row.url, access.get(name))
            price = row.price_per_hour if row.price_per_hour is not None else _catalogue_price(row.accelerator)
        except (UrlError, PriceError) as error:
            raise ConfigError(f"{file}: replica {name!r}: {error}") from None
        yield Replica(name, row.url, row.models, row.engine, round(price * NANO), row.accelerator, row.cap)


def _catalogue_price(accelerator: str) -> float:
    """US dollars an hour; 0 where no accelerator is named: the audit then shows the replica as unpriced."""
    return find_price(accelerator) if accelerator else 0.0
