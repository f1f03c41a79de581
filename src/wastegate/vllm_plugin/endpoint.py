"""Two routes on vLLM's own server, for a gateway that knows the token: records after a sequence number, and settings.
They ask the engine's process, or where no scheduler of ours runs there, the statistics of this one."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
from typing import Any

import msgspec

from wastegate.core.records import Settings
from wastegate.vllm_plugin import stat_logger

log = logging.getLogger("vllm.wastegate")

TOKEN = "WASTEGATE_PLUGIN_TOKEN"
MOST = 2_000
"""Records in one answer: a megabyte or two."""
_WAIT_SECONDS = 15.0
"""The engine answers between two steps, and a step with long prompts takes a while."""
_BODY_BYTES = 65_536


class Endpoint:
    """What vLLM's ``endpoint_plugins`` expect. Without a token in its environment it opens no route."""

    name = "wastegate"
    required_tasks = None

    def __init__(self, token: str | None = None) -> None:
        self._token = (token if token is not None else os.environ.get(TOKEN, "")).strip()
        self._engine: Any = None
        self._asked: set[asyncio.Task[str]] = set()

    def attach_router(self, app: Any) -> None:
        """Add the routes."""
        if not self._token:
            log.warning("wastegate opens no route: set %s for vLLM, and the same for the gateway", TOKEN)
            return
        try:
            from starlette.routing import Route

            app.router.routes.append(Route("/wastegate/records", self._records, methods=["GET"]))
            app.router.routes.append(Route("/wastegate/settings", self._settings, methods=["GET", "PUT"]))
        except Exception as error:
            log.warning("wastegate opens no route, this vLLM serves otherwise (%s)", error)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Where the engine is asked."""
        self._engine = engine_client

    # ---- routes

    async def _records(self, request: Any) -> Any:
        if not self._may(request):
            return _answer(401, {"error": f"the token is not that of {TOKEN} in vLLM's environment"})
        try:
            after, limit = (
                int(request.query_params.get(name, default)) for name, default in (("after", 0), ("limit", MOST))
            )
        except ValueError:
            return _answer(400, {"error": "after and limit are whole numbers"})
        limit, boot = min(max(limit, 1), MOST), request.query_params.get("boot", "")
        told = await self._ask({"records": True, "boot": boot, "after": after, "limit": limit})
        if "busy" in told:  # its records are there, only not now: others in their place would look like a restart
            return _answer(504, {"error": told["busy"]})
        if "page" in told and not told["page"]["lacks"]:
            return _answer(200, told["page"])
        # No scheduler of ours, or one that gave up: what vLLM's statistics say is better than nothing.
        finished = stat_logger.find(self._engine)
        if finished is None:
            return _answer(503, {"error": told.get("error") or told["page"]["lacks"]})
        lacks = finished.lacks or told.get("error") or told["page"]["lacks"]
        return _answer(200, msgspec.to_builtins(finished.ring.page(boot, after, limit, finished.now(), lacks=lacks)))

    async def _settings(self, request: Any) -> Any:
        if not self._may(request):
            return _answer(401, {"error": f"the token is not that of {TOKEN} in vLLM's environment"})
        question: dict[str, Any] = {}
        if request.method == "PUT":
            body = await request.body()
            try:
                settings = msgspec.json.decode(body[:_BODY_BYTES], type=Settings)
            except (msgspec.DecodeError, ValueError) as error:
                return _answer(400, {"error": str(error)})
            question["settings"] = msgspec.to_builtins(settings)
        told = await self._ask(question)
        if "busy" in told:
            return _answer(504, {"error": f"{told['busy']}; what was asked for comes into force after it"})
        return _answer(200, told["status"]) if "status" in told else _answer(409, told)

    def _may(self, request: Any) -> bool:
        given = request.headers.get("authorization", "").encode()
        return hmac.compare_digest(given, f"Bearer {self._token}".encode())

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """What the engine's process says. It is never cancelled: vLLM could not deliver the answer any more."""
        core: Any = getattr(self._engine, "engine_core", None)
        if not hasattr(core, "call_utility_async"):
            return {"error": "this vLLM's engine cannot be asked from its server"}
        task = asyncio.ensure_future(core.call_utility_async("wastegate", question))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        try:
            told: dict[str, Any] = json.loads(await asyncio.wait_for(asyncio.shield(task), _WAIT_SECONDS))
            return told
        except TimeoutError:
            return {"busy": f"the engine was in one step for {_WAIT_SECONDS:g} s"}
        except Exception as error:
            return {"error": f"the engine cannot be asked ({type(error).__name__}: {error})"}


def _answer(status: int, body: dict[str, Any]) -> Any:
    from starlette.responses import Response

    return Response(msgspec.json.encode(body), status, media_type="application/json")
