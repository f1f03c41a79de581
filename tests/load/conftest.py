"""A small OpenAI-like server on a loopback port with a real (if tiny) tokenizer, for the load tool to talk to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

_PIECE = re.compile(r" ?[A-Za-z]+|\n| ?[^\sA-Za-z]+|\s")
TEMPLATE = ("<system>", "be", "kind", "<user>"), ("<end>", "<assistant>")


class ToyTokenizer:
    """Byte-pair-like: a word with the space before it is one token, a word of more than ``longest`` letters several."""

    def __init__(self, longest: int = 6, bos: bool = False) -> None:
        self.longest = longest
        self.bos = bos
        self._ids: dict[str, int] = {}

    def text(self, text: str) -> list[int]:
        pieces = ["<bos>"] if self.bos else []
        return [self._id(piece) for piece in (*pieces, *self._split(text))]

    def chat(self, messages: list[dict[str, Any]]) -> list[int]:
        content = "\n".join(str(message["content"]) for message in messages)
        return [self._id(piece) for piece in (*TEMPLATE[0], *self._split(content), *TEMPLATE[1])]

    def _split(self, text: str) -> list[str]:
        pieces: list[str] = []
        for piece in _PIECE.findall(text):
            size = self.longest + piece.startswith(" ")
            pieces.append(piece[:size])
            pieces += [piece[at : at + self.longest] for at in range(size, len(piece), self.longest)]
        return pieces

    def _id(self, piece: str) -> int:
        return self._ids.setdefault(piece, len(self._ids))


class ToyServer:
    """Answers with as many words as asked for. What it does wrong is set by the test."""

    def __init__(self) -> None:
        self.tokenizer = ToyTokenizer()
        self.models = ["toy"]
        self.context: int | None = 4096
        self.tokenizes = True
        self.says_ids = True
        self.says_usage = True
        self.refuses_eos = False
        self.delay: Callable[[], float] = lambda: 0.0
        """Seconds before the first token, asked for each call."""
        self.gap = 0.0
        """Seconds between tokens."""
        self.calls: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.prompts: list[list[int]] = []
        self.left = 0
        """Clients that closed before the end."""
        self.url = ""

    async def serve(self) -> AsyncIterator[ToyServer]:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def ids(self, body: dict[str, Any]) -> list[int]:
        return self.tokenizer.chat(body["messages"]) if "messages" in body else self.tokenizer.text(body["prompt"])

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name, "max_model_len": self.context} for name in self.models]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        if not self.tokenizes:
            return web.json_response({"error": {"message": "no such route"}}, status=404)
        ids = self.ids(await request.json())
        said = ids if self.says_ids else None
        return web.json_response({"count": len(ids), "tokens": said, "max_model_len": self.context})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.refuses_eos and "ignore_eos" in body:
            return web.json_response({"error": {"message": "ignore_eos is not supported"}}, status=400)
        ids = self.ids(body)
        self.calls.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.prompts.append(ids)
        if self.context is not None and len(ids) + body.get("max_tokens", 1) > self.context:
            return web.json_response({"error": {"message": f"{len(ids)} tokens do not fit"}}, status=400)
        try:
            return await self._answer(request, body, len(ids))
        except (ConnectionError, asyncio.CancelledError):
            self.left += 1
            raise

    async def _answer(self, request: web.Request, body: dict[str, Any], prompt: int) -> web.StreamResponse:
        wanted = body.get("max_tokens", 16)
        usage = {"prompt_tokens": prompt, "completion_tokens": wanted} if self.says_usage else None
        await asyncio.sleep(self.delay())
        if not body.get("stream"):
            choice = {"index": 0, "message": {"content": "word " * wanted}, "finish_reason": "length"}
            return web.json_response({"choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number in range(wanted):
            if number and self.gap:
                await asyncio.sleep(self.gap)
            await response.write(_event({"delta": {"content": "word "}, "text": "word ", "finish_reason": None}))
        await response.write(_event({"delta": {}, "finish_reason": "length"}))
        if usage is not None:
            await response.write(b"data: " + msgspec.json.encode({"choices": [], "usage": usage}) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def _event(choice: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode({"choices": [{"index": 0, **choice}]}) + b"\n\n"


@pytest.fixture
async def toy() -> AsyncIterator[ToyServer]:
    async for server in ToyServer().serve():
        yield server
