"""The operator's side: health, metrics and the fleet's state, on a listener of its own, apart from the clients'."""

from __future__ import annotations

import hmac
from collections.abc import Callable

import msgspec
from aiohttp import web
from msgspec import Struct

from wastegate.core.world import World
from wastegate.gateway.tally import Report, exposition


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Who may look. Without a token only this machine can: the listener then must be on loopback."""

    listen: str = "127.0.0.1:8081"
    token: str = ""
    """Asked for as ``Authorization: Bearer …`` on all paths but ``/health``."""


class Control:
    """Serves ``/health``, ``/metrics`` and ``/admin/state``."""

    def __init__(
        self,
        world: World,
        now: Callable[[], float],
        report: Callable[[], Report],
        config: Config,
        host: str,
        port: int,
    ) -> None:
        self._world = world
        self._now = now
        self._report = report
        self._config = config
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """The port that it listens on. Raises OSError where it cannot."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/admin/state", self._state)
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
        token = self._config.token
        if token and request.path != "/health":
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                return web.json_response({"error": "the admin token is missing or wrong"}, status=401)
        return await handler(request)  # type: ignore[operator, no-any-return]

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        text = exposition(self._report(), self._world.states)
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def _state(self, request: web.Request) -> web.Response:
        now = self._now()
        report = self._report()
        state = {
            "in_flight": report.flights,
            "waiting": report.waiting,
            "unrecorded": report.unrecorded,
            "journal": report.failing or "ok",
            "replicas": [
                {
                    "name": s.replica.name,
                    "url": s.replica.url,
                    "engine": s.replica.engine,
                    "models": s.replica.models,
                    "state": s.state,
                    "breaker": s.breaker,
                    "in_flight": s.in_flight,
                    "resting_s": max(0.0, s.resting_until - now),
                    "price_per_hour": s.replica.price / 1e9,
                }
                for s in self._world.seen(now)
            ],
        }
        return web.Response(body=msgspec.json.encode(state), content_type="application/json")
