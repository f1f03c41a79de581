"""The engine's admin routes: limits that change while it runs, and what its steps cost. Open to this machine alone,
unless a token is set; nothing of a client's request is seen here."""

from __future__ import annotations

import hmac
import ipaddress
from typing import Any

import msgspec
from aiohttp import web

from wastegate.core.admission import CapConfig, Limits
from wastegate.core.widths import knee
from wastegate.local.child import Child
from wastegate.local.metrics import Metrics
from wastegate.local.requests import RequestError, parse_body


class Admin:
    """``/admin/limits``, ``/admin/caps`` and ``/admin/work``."""

    def __init__(self, child: Child, metrics: Metrics, token: str, kv_capacity: int) -> None:
        self._child = child
        self._metrics = metrics
        self._token = token
        self._kv_capacity = kv_capacity
        """Tokens."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/admin/limits", self._limits),
            web.put("/admin/limits", self._resize),
            web.get("/admin/caps", self._caps),
            web.put("/admin/caps", self._steer),
            web.get("/admin/work", self._work),
        ]

    async def _limits(self, request: web.Request) -> web.Response:
        self._allow(request)
        return _json({**msgspec.to_builtins(self._child.limits), **self._load()})

    async def _resize(self, request: web.Request) -> web.Response:
        self._allow(request)
        self._child.resize(limits_of(parse_body(await request.read()), self._child.limits))
        return _json({**msgspec.to_builtins(self._child.limits), **self._load()})

    async def _caps(self, request: web.Request) -> web.Response:
        self._allow(request)
        return _json(self._steered())

    async def _steer(self, request: web.Request) -> web.Response:
        self._allow(request)
        self._child.steer(caps_of(parse_body(await request.read()), self._child.caps))
        return _json(self._steered())

    def _steered(self) -> dict[str, Any]:
        """How the cap follows the load, what it is now and why, and tokens a second by width where they are known."""
        capped = self._child.capped
        bend = knee(capped.points)
        return {
            **msgspec.to_builtins(self._child.caps),
            "cap": self._child.limits.cap,
            "why": capped.why,
            "tokens_per_second": {f"{point.batch:.0f}": round(point.rate, 1) for point in capped.points},
            "knee": round(bend.batch) if bend is not None else None,
        }

    async def _work(self, request: web.Request) -> web.Response:
        self._allow(request)
        return _json({**msgspec.to_builtins(self._metrics.times.cost()), "kv_capacity_tokens": self._kv_capacity})

    def _load(self) -> dict[str, int]:
        return {"running": self._metrics.running, "waiting": self._metrics.waiting}

    def _allow(self, request: web.Request) -> None:
        """Raises :class:`RequestError` for who may not."""
        if self._token:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._token.encode()):
                raise RequestError("/admin needs 'Authorization: Bearer' with the engine's admin token", status=401)
        elif not _is_this_machine(request.remote):
            raise RequestError(
                "/admin answers this machine only; start the engine with --admin-token to use it from elsewhere",
                status=403,
            )


def limits_of(fields: dict[str, Any], present: Limits) -> Limits:
    """New limits; what is not given stays. Raises :class:`RequestError`."""
    try:
        return msgspec.convert({**msgspec.to_builtins(present), **fields}, Limits)
    except msgspec.ValidationError as problem:
        raise RequestError(f"limits: {problem}") from problem


def caps_of(fields: dict[str, Any], present: CapConfig) -> CapConfig:
    """How the cap shall follow the load; what is not given stays. Raises :class:`RequestError`."""
    try:
        return msgspec.convert({**msgspec.to_builtins(present), **fields}, CapConfig)
    except msgspec.ValidationError as problem:
        raise RequestError(f"caps: {problem}") from problem


def _is_this_machine(address: str | None) -> bool:
    try:
        return address is not None and ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
