"""A new configuration taken into force while the gateway runs: read and checked whole, then swapped at once, or not at
all. What each part does with it is the part's own business."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from wastegate.gateway import tls
from wastegate.gateway.changes import compare, in_force, shown
from wastegate.gateway.config import Config, StartError, address, is_local
from wastegate.gateway.upstream import Origin

log = logging.getLogger(__name__)

_READ_SECONDS = 30.0
"""For the file, the certificates and the keys together: a file system that hangs must not keep the operator waiting."""


class ReloadError(ValueError):
    """The configuration stays as it was; the text says what is wrong with the new one."""


class Ready(Struct, frozen=True):
    """A configuration with all that it names read and found good: taking it cannot fail any more."""

    config: Config
    origins: dict[str, Origin]
    """By the replica's name."""
    certificate: tls.Loaded | None


class Outcome(Struct, frozen=True):
    """What a reload has done, in words."""

    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]
    """What the file says, but a running gateway cannot do."""


def prepare(config: Config) -> Ready:
    """Read what the configuration names. Blocks. Raises ValueError."""
    origins = {
        replica.name: Origin(replica.url, config.access.get(replica.name))
        for replica in config.replicas
        if replica.url  # none yet: a process of our own
    }
    return Ready(config, origins, tls.load(config.tls) if config.tls.on else None)


def prepare_first(config: Config) -> Ready:
    """The same for a gateway that starts. Raises StartError."""
    try:
        return prepare(config)
    except ValueError as error:
        raise StartError(str(error)) from None


class Reloader:
    """Holds the configuration in force. ``load`` reads another one and raises ValueError where it is wrong."""

    def __init__(
        self, config: Config, load: Callable[[], Config] | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.config = config
        self.parts: Sequence[Callable[[Ready], None]] = ()
        """Who takes a configuration that is ready. None of them may fail, nor wait."""
        self._load = load
        self._now = now
        self._loaded_at = now()
        self._last_error = ""
        self._failures = 0
        self._needs_restart: tuple[str, ...] = ()
        self._turn = asyncio.Lock()
        self._wished = False
        self._granting: asyncio.Task[None] | None = None
        self._stopped = False

    def wish(self) -> None:
        """Reload soon; the log says what came of it. Many wishes at once are one, but none is lost: a file that has
        changed since it was read is read again."""
        self._wished = True
        if self._granting is None or self._granting.done():
            self._granting = asyncio.ensure_future(self._grant())

    async def _grant(self) -> None:
        while self._wished:
            self._wished = False
            try:
                await self.reload()
            except ReloadError:
                pass  # it has been logged

    async def reload(self) -> Outcome:
        """Read, check and take the configuration. Raises ReloadError; the one before then stays in force."""
        async with self._turn:
            try:
                async with asyncio.timeout(_READ_SECONDS):
                    new, ready = await asyncio.to_thread(self._read)
            except TimeoutError:
                raise self._failed(f"it could not be read within {_READ_SECONDS:g} s") from None
            except ValueError as error:
                raise self._failed(str(error)) from None
            except Exception as error:  # a fault of ours must not cost the operator the gateway that runs
                log.exception("reading the configuration failed")
                raise self._failed(f"{type(error).__name__}: {error}") from None
            if self._stopped:
                raise self._failed("the gateway is shutting down")
            return self._take(new, ready)

    def _read(self) -> tuple[Config, Ready]:
        if self._load is None:
            raise ValueError("this gateway was not started from a configuration that could be read again")
        new = self._load()
        host, _ = address(self.config.control.listen)
        if not is_local(host) and not new.control.token:
            raise ValueError(
                f"the admin listener stays on {host} until a restart, and others can reach it: keep a token"
            )
        return new, prepare(in_force(self.config, new))

    def _take(self, new: Config, ready: Ready) -> Outcome:
        changed = compare(self.config, ready.config)
        for part in self.parts:
            part(ready)
        self.config = ready.config
        self._loaded_at = self._now()
        self._last_error = ""
        self._needs_restart = compare(ready.config, new)
        log.info("the configuration was reloaded%s", "" if changed else ": nothing has changed")
        for line in changed:
            log.info("configuration: %s", line)
        for line in self._needs_restart:
            log.warning("configuration: needs a restart: %s", line)
        return Outcome(changed, self._needs_restart)

    def _failed(self, why: str) -> ReloadError:
        self._failures += 1
        self._last_error = why
        log.error("the configuration was not reloaded, the last good one stays in force: %s", why)
        return ReloadError(why)

    def stop(self) -> None:
        """No reload any more."""
        self._stopped = True
        if self._granting is not None:
            self._granting.cancel()

    # ---- for the operator

    def state(self) -> dict[str, Any]:
        return {
            "source": self.config.source,
            "loaded_at": self._loaded_at,
            "sha256": self.config.sha256,
            "last_error": self._last_error,
            "needs_restart": self._needs_restart,
        }

    def shown(self) -> dict[str, Any]:
        """The configuration in force, secrets masked."""
        return shown(self.config)

    def exposition(self) -> str:
        """Prometheus text format, version 0.0.4."""
        return (
            "# HELP wastegate_config_reload_failures_total Configurations that were not taken into force.\n"
            "# TYPE wastegate_config_reload_failures_total counter\n"
            f"wastegate_config_reload_failures_total {self._failures}\n"
            "# HELP wastegate_config_loaded_timestamp_seconds When the configuration in force was read.\n"
            "# TYPE wastegate_config_loaded_timestamp_seconds gauge\n"
            f"wastegate_config_loaded_timestamp_seconds {self._loaded_at:.3f}\n"
        )


# ---- from the chief to its workers


def pack(config: Config) -> bytes:
    """A configuration for another process of this gateway. It holds secrets: only a private socket may carry it."""
    return msgspec.msgpack.encode(config, enc_hook=str)  # the hook is for paths


def unpack(packed: bytes) -> Config:
    return msgspec.msgpack.decode(packed, type=Config, dec_hook=lambda kind, value: kind(value))


class Follower:
    """A worker's side: takes what the chief has found good, the last one told at the end."""

    def __init__(self, take: Callable[[Ready], None]) -> None:
        self._take = take
        self._told: bytes | None = None
        self._task: asyncio.Task[None] | None = None

    def told(self, packed: bytes) -> None:
        self._told = packed
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        while self._told is not None:
            config, self._told = unpack(self._told), None
            try:
                ready = await asyncio.to_thread(prepare, config)
            except ValueError as error:  # a certificate that was good a moment ago
                log.error("the configuration was not taken, the last one stays in force: %s", error)
            else:
                self._take(ready)
