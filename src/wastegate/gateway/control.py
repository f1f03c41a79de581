"""The operator's side: health, metrics and the fleet's state, on a listener of its own, apart from the clients'."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web
from msgspec import Struct

from wastegate.core.admission import CapState
from wastegate.core.world import World
from wastegate.engines.readback import Seen
from wastegate.gateway import host
from wastegate.gateway.devices import Gauges
from wastegate.gateway.pushed import LARGEST_BODY, Board, PushError
from wastegate.gateway.roster import Roster
from wastegate.gateway.shared import Status
from wastegate.gateway.shared import exposition as shared_exposition
from wastegate.gateway.tally import Report, exposition

if TYPE_CHECKING:
    from wastegate.gateway.reload import Reloader

log = logging.getLogger(__name__)


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Who may look. Without a token only this machine can: the listener then must be on loopback."""

    listen: str = "127.0.0.1:8081"
    token: str = ""
    """Asked for as ``Authorization: Bearer …`` on all paths but ``/health``."""
    token_env: str = ""
    """The environment variable that holds it."""


class Control:
    """Serves ``/health``, ``/metrics`` and, below ``/admin``, state, configuration, reload and drain."""

    def __init__(
        self,
        world: World,
        now: Callable[[], float],
        report: Callable[[], Report],
        roster: Roster,
        reloader: Reloader,
        address: str,
        port: int,
    ) -> None:
        self._world = world
        self._now = now
        self._report = report
        self._roster = roster
        self._reloader = reloader
        self._host = address
        self._port = port
        self._runner: web.AppRunner | None = None
        self.shared: Callable[[], Status] | None = None
        """How this gateway stands with others, if it shares its replicas."""
        self.seen: Callable[[str], Seen] = lambda name: Seen()
        self.capped: Callable[[str], CapState | None] = lambda name: None
        """What is known of a replica's engine, by the replica's name."""
        self.gauges: Gauges | None = None
        self.board: Board | None = None
        self.process: Callable[[str], int | None] = lambda name: None
        """The process of a replica that this gateway has started."""

    async def start(self) -> int:
        """The port that it listens on. Raises OSError where it cannot."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/admin/state", self._state)
        app.router.add_get("/admin/config", self._config)
        app.router.add_post("/admin/reload", self._reload)
        app.router.add_post("/admin/signals", self._push)
        app.router.add_post("/admin/replicas/{name:.+}/drain", self._drain)
        app.router.add_post("/admin/replicas/{name:.+}/undrain", self._undrain)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        address = self._runner.addresses[0]
        return int(address[1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: object) -> web.StreamResponse:
        token = self._reloader.config.control.token
        if token and request.path != "/health":
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {token}".encode()):
                text = "the admin token is missing or wrong: send 'Authorization: Bearer …' with it"
                return _json({"error": text}, 401)
        elif request.method == "POST" and "origin" in request.headers:
            # Any page in a browser on this machine could send this.
            text = "a browser may not do this while no admin token is set: set [admin] token_env"
            return _json({"error": text}, 403)
        return await handler(request)  # type: ignore[operator, no-any-return]

    async def _health(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        text = exposition(self._report(), self._world.states) + self._reloader.exposition()
        if self.shared is not None:
            text += shared_exposition(self.shared())
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def _state(self, request: web.Request) -> web.Response:
        now = self._now()
        report = self._report()
        state = {
            "in_flight": report.flights,
            "waiting": report.waiting,
            "unrecorded": report.unrecorded,
            "journal": report.failing or "ok",
            "config": self._reloader.state(),
            "shared": self.shared() if self.shared is not None else None,
            "replicas": [
                {
                    "name": s.replica.name,
                    "url": s.replica.url,
                    "engine": s.replica.engine,
                    "models": s.replica.models,
                    "state": s.state,
                    "drained": self._roster.drained(s.replica.name),
                    "breaker": s.breaker,
                    "in_flight": s.in_flight,
                    "resting_s": max(0.0, s.resting_until - now),
                    "price_per_hour": s.replica.price / 1e9,
                    "cap": s.replica.cap,
                    "cap_why": capped.why if (capped := self.capped(s.replica.name)) is not None else "as configured",
                    "seen": self.seen(s.replica.name),
                    "accelerators": self.gauges.load(s.replica.name) if self.gauges is not None else None,
                    "alarms": self.board.alarms(s.replica.name) if self.board is not None else (),
                    "host": self._process_of(s.replica.name),
                }
                for s in self._world.seen(now)
            ],
        }
        return _json(state)

    async def _config(self, request: web.Request) -> web.Response:
        return _json(self._reloader.shown())

    async def _reload(self, request: web.Request) -> web.Response:
        try:
            return _json(await self._reloader.reload())
        except ValueError as error:
            return _json({"error": str(error)}, 422)

    async def _push(self, request: web.Request) -> web.Response:
        if self.board is None:
            return _json({"error": "this gateway takes no signals"}, 404)
        body = b""
        while len(body) <= LARGEST_BODY and (more := await request.content.read(LARGEST_BODY + 1 - len(body))):
            body += more
        try:
            taken = self.board.take(body, [state.replica.name for state in self._world.states])
        except PushError as error:
            return _json({"error": str(error)}, 422)
        return _json({"taken": taken})

    def _process_of(self, name: str) -> host.Host | None:
        pid = self.process(name)
        return host.read(pid) if pid is not None else None

    async def _drain(self, request: web.Request) -> web.Response:
        return self._operate(request.match_info["name"], self._roster.drain)

    async def _undrain(self, request: web.Request) -> web.Response:
        return self._operate(request.match_info["name"], self._roster.undrain)

    def _operate(self, name: str, action: Callable[[str], None]) -> web.Response:
        try:
            action(name)
        except KeyError:
            names = ", ".join(state.replica.name for state in self._world.states)
            return _json({"error": f"there is no replica {name!r}; there are: {names}"}, 404)
        found = next(state for state in self._world.states if state.replica.name == name)
        drained = self._roster.drained(name)
        log.info("replica %s was %s by hand; it is %s", name, "drained" if drained else "undrained", found.state)
        return _json({"name": name, "state": found.state, "drained": drained, "in_flight": found.in_flight})


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
