"""The engine's HTTP server: routes, start, drain and end. The step loop is a process of its own (child.py); no
model is run here."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uvloop
from aiohttp import web
from msgspec import Struct

from wastegate.local.admin import Admin
from wastegate.local.answers import Answers, error
from wastegate.local.child import Child
from wastegate.local.messages import BLOCK, LoopConfig
from wastegate.local.metrics import Metrics
from wastegate.local.requests import RequestError, parse_body, parse_messages
from wastegate.local.tokenizer import ChatTemplateError, Tokenizer

MAX_BODY = 8 << 20
"""Bytes of a request body: far beyond any context that a CPU serves."""
BACKLOG = 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ServerConfig(Struct, frozen=True):
    """Where the engine listens, what it calls its model, and how it ends."""

    loop: LoopConfig
    model: str
    host: str = "127.0.0.1"
    port: int = 8001
    """0 takes a free one."""
    drain: float = 30.0
    """Seconds that running calls are given after SIGTERM."""
    admin_token: str = ""
    """Needed for /admin from elsewhere than this machine; empty keeps /admin on this machine."""


def serve(config: ServerConfig) -> int:
    """Run the engine until SIGTERM or SIGINT. Prints ``ready URL`` on stdout once it serves. The exit code.

    Raises :class:`wastegate.local.child.LoopError` where the model cannot be loaded, OSError where it cannot listen.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Server(config).run())


class Server:
    """One engine: a loop's child process, and HTTP before it."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._metrics = Metrics()
        self._child = Child(config.loop, self._metrics)
        self._answers = Answers(
            self._child, self._metrics, model=config.model, context=config.loop.context,
            prefix_caching=config.loop.prefix_caching,
        )  # fmt: skip
        self._admin = Admin(self._child, self._metrics, config.admin_token, config.loop.kv_blocks * BLOCK)
        self._created = int(time.time())

    async def run(self) -> int:
        """Listen, serve, drain, end."""
        ending = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ending.set)
        runner = web.AppRunner(self.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, self._config.host, self._config.port, backlog=BACKLOG)
        await site.start()
        child = asyncio.create_task(self._child.run())
        announce = asyncio.create_task(self._announce(runner.addresses[0]))
        told = asyncio.create_task(ending.wait())
        waiting: set[asyncio.Task[Any]] = {child, told, announce}
        try:
            while not told.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # what cannot be loaded ends the engine
            await self._drain()
        finally:
            announce.cancel()
            told.cancel()
            await self._child.stop()
            await runner.cleanup()
            await asyncio.gather(child, announce, return_exceptions=True)
        return 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[errors_as_json])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._answers.chat),
                web.post("/v1/completions", self._answers.completion),
                web.get("/v1/models", self._models),
                web.post("/tokenize", self._tokenize),
                web.get("/health", self._health),
                web.get("/ready", self._ready),
                web.get("/metrics", self._metrics_text),
                *self._admin.routes(),
            ]
        )
        return app

    async def _announce(self, address: tuple[Any, ...]) -> None:
        """Load the tokenizer, while the loop loads the model, and say when both are done."""
        self._answers.tokenizer = await asyncio.to_thread(Tokenizer, self._config.loop.model)
        while self._child.state != "ready":
            self._child.changed.clear()
            await self._child.changed.wait()
        gc.collect()
        gc.freeze()  # what was loaded stays: no collection need walk it again
        host, port = address[:2]
        print(f"ready http://[{host}]:{port}" if ":" in host else f"ready http://{host}:{port}", flush=True)

    async def _drain(self) -> None:
        """Refuse new calls, and give those that run their time."""
        self._answers.draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._answers.idle(), self._config.drain)

    async def _models(self, _: web.Request) -> web.Response:
        model = {
            "id": self._config.model, "object": "model", "created": self._created, "owned_by": "wastegate",
            "max_model_len": self._config.loop.context,
        }  # fmt: skip
        return _json({"object": "list", "data": [model]})

    async def _health(self, _: web.Request) -> web.Response:
        return _json({"status": "alive"})

    async def _ready(self, _: web.Request) -> web.Response:
        state = "draining" if self._answers.draining else self._state()
        return _json({"status": state}, status=200 if state == "ready" else 503)

    def _state(self) -> str:
        return "loading" if self._answers.tokenizer is None else self._child.state

    async def _metrics_text(self, _: web.Request) -> web.Response:
        limits = self._child.limits
        text = self._metrics.text(
            ready=self._state() == "ready", restarts=self._child.restarts, cap=limits.cap, queue=limits.queue,
            kv_capacity=self._config.loop.kv_blocks * BLOCK,
        )  # fmt: skip
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _tokenize(self, request: web.Request) -> web.Response:
        tokenizer = self._answers.tokenizer
        if tokenizer is None:
            return error(503, "the engine is loading; try again shortly")
        fields = parse_body(await request.read())
        special = fields.get("add_special_tokens")
        if special is not None and not isinstance(special, bool):
            raise RequestError("add_special_tokens must be true or false", "add_special_tokens")
        if "messages" in fields:
            answer = fields.get("add_generation_prompt", True) is not False
            try:
                text = tokenizer.render(parse_messages(fields), answer=answer)
            except ChatTemplateError as problem:
                raise RequestError(str(problem), "messages") from problem
            default = False  # the template writes them
        elif isinstance(fields.get("prompt"), str):
            text, default = fields["prompt"], True
        else:
            raise RequestError("give prompt (a text) or messages", "prompt")
        tokens = await tokenizer.tokens(text, special=default if special is None else special)
        return _json({"count": int(tokens.size), "max_model_len": self._config.loop.context, "tokens": tokens.tolist()})


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error leaves in OpenAI's shape. What a client sent is not logged."""
    try:
        return await handler(request)
    except RequestError as problem:
        return error(problem.status, str(problem), param=problem.param, code=problem.code)
    except web.HTTPRequestEntityTooLarge:
        return error(413, f"the body is over {MAX_BODY} bytes")
    except web.HTTPException as problem:
        return error(problem.status, f"{request.method} {request.path}: {problem.reason}")
    except ConnectionError:
        raise  # the client is gone
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return error(500, "the engine failed on this call; its log says more")


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
