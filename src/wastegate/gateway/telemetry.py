"""Calls that have ended, told to an OpenTelemetry collector by a thread of its own. It is handed what the ledger's
thread has just written, so no call waits for it; a collector that is slow or gone costs spans, never an answer."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from wastegate import __version__
from wastegate.core.ledger import Entry
from wastegate.core.spans import Span, sampled, spans

log = logging.getLogger(__name__)

_BATCH = 512
"""Calls in one export."""
_GIVE_UP_SECONDS = 1.0
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)=([\x20-\x7e]*)")


class TelemetryError(Exception):
    """Telemetry cannot begin; the text says what to do."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Where calls are told, and how much of them. Off without an endpoint."""

    endpoint: str = ""
    """The collector's base address for OTLP over HTTP; ``/v1/traces`` and ``/v1/metrics`` are added."""
    headers: dict[str, str] = {}
    headers_env: str = ""
    """An environment variable with more of them, for secrets: ``name=value,name=value``."""
    service: str = "wastegate"
    tenant: bool = False
    """Spans say who is billed, and the tags that clients gave."""
    metrics: bool = True
    """Send metrics too; some collectors take spans only."""
    sample: float = 1.0
    """Share of the calls whose spans are sent, where their client's ``traceparent`` does not say. Metrics have all."""
    every: float = 5.0
    timeout: float = 5.0
    """Seconds for one export with its retries, and for the last ones at shutdown."""
    queue: int = 20_000
    """Calls that may wait to be sent, in each process that serves; what comes beyond is dropped and counted."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint)
        if self.endpoint and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError(f"endpoint is {self.endpoint!r}: write the collector's address, http://127.0.0.1:4318")
        if not 0.0 <= self.sample <= 1.0:
            raise ValueError(f"sample is {self.sample:g}: a share from 0 to 1")
        if not self.every > 0 or not self.timeout > 0:
            raise ValueError("every and timeout must be above 0 seconds")
        if self.queue < 1:
            raise ValueError(f"queue is {self.queue}: at least 1")


def headers_of(text: str) -> dict[str, str]:
    """``name=value,name=value`` taken apart. ValueError does not quote it: values may be secrets."""
    found = [_HEADER.fullmatch(part.strip()) for part in text.split(",") if part.strip()]
    pairs = [match.groups() for match in found if match is not None]
    if len(pairs) != len(found):
        raise ValueError("it must read name=value,name=value")
    return {name.lower(): value.strip() for name, value in pairs}


class Sender(Protocol):
    """What ``gateway.otlp`` has, without its packages."""

    def count(self, entry: Entry) -> None: ...

    def send_spans(self, some: Sequence[Span]) -> bool: ...

    def send_metrics(self) -> bool: ...

    def close(self) -> None: ...


def open_telemetry(config: Config, worker: str) -> Telemetry | None:
    """None where it is off. Raises TelemetryError where its packages are missing."""
    if not config.endpoint:
        return None
    try:
        from wastegate.gateway import otlp
    except ImportError as error:
        raise TelemetryError(
            f"[telemetry] needs packages that are not installed ({error.name}): pip install 'wastegate[otel]', or "
            "leave endpoint empty"
        ) from None
    names = {
        "service.name": config.service,
        "service.version": __version__,
        "service.instance.id": f"{socket.gethostname()}/{worker}",
    }
    return Telemetry(config, otlp.Sender(config.endpoint, config.headers, config.timeout, names))


class Telemetry:
    """One process's thread that sends."""

    def __init__(self, config: Config, sender: Sender) -> None:
        self._config = config
        self._sender = sender
        self._pending: deque[Entry] = deque()
        self._due = threading.Event()
        self._stopping = False
        self._given_up = False
        self._failing: set[str] = set()
        self._crowded = 0  # by whoever puts
        self._lost = 0  # by the thread that sends
        self._thread = threading.Thread(target=self._run, name="wastegate-telemetry", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Calls whose spans the collector never got: no room in the queue, or not taken in time."""
        return self._crowded + self._lost

    def put(self, entries: Sequence[Entry]) -> None:
        """Calls that have ended. Returns at once. For one thread."""
        room = max(self._config.queue - len(self._pending), 0)
        self._pending.extend(entries[:room])
        self._crowded += max(len(entries) - room, 0)
        if len(self._pending) >= _BATCH:
            self._due.set()

    def close(self) -> None:
        """Send what is left, for ``timeout`` seconds at most."""
        self._stopping = True
        self._due.set()
        self._thread.join(timeout=self._config.timeout)
        self._given_up = True
        self._sender.close()
        self._thread.join(timeout=_GIVE_UP_SECONDS)
        if self.dropped or self._pending:
            log.warning("telemetry: %d calls were not told to the collector", self.dropped + len(self._pending))

    def _run(self) -> None:
        stopping = False
        while not stopping:
            self._due.wait(self._config.every)
            self._due.clear()
            stopping = self._stopping  # before the flush, so that nothing put before the end is left
            self._flush()

    def _flush(self) -> None:
        """Send all that waits now; what comes meanwhile is the next round's."""
        for _ in range(0, len(self._pending), _BATCH):
            if self._given_up:
                return
            batch = [self._pending.popleft() for _ in range(min(len(self._pending), _BATCH))]
            if not self._told("spans", self._attempt(lambda batch=batch: self._send(batch))):  # type: ignore[misc]
                self._lost += len(batch)
        if self._config.metrics and not self._given_up:
            self._told("metrics", self._attempt(self._sender.send_metrics))

    def _send(self, batch: Sequence[Entry]) -> bool:
        for entry in batch:
            self._sender.count(entry)
        some = [
            span for entry in batch if sampled(entry, self._config.sample) for span in spans(entry, self._config.tenant)
        ]
        return not some or self._sender.send_spans(some)

    def _attempt(self, send: Callable[[], bool]) -> bool:
        try:
            return send()
        except Exception:  # whatever it is, it must not end this thread: nothing would be sent any more
            log.exception("telemetry: a fault while sending")
            return False

    def _told(self, what: str, well: bool) -> bool:
        """Say so once when it begins to fail, and once when it works again."""
        if well and what in self._failing:
            self._failing.discard(what)
            log.warning("telemetry: the collector takes %s again", what)
        elif not well and what not in self._failing:
            self._failing.add(what)
            where = urlsplit(self._config.endpoint).hostname  # not the whole: it may hold a password
            log.error("telemetry: the collector at %s does not take %s", where, what)
        return well
