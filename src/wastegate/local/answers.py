"""One completion call over HTTP: checked, tokenised, handed to the step loop, and written out as it comes. When
the client leaves, the handler is cancelled and the call dropped."""

from __future__ import annotations

import asyncio
import os
import re
import time
import uuid

import numpy as np
from aiohttp import web

from wastegate.local.child import Call, Child
from wastegate.local.chunks import DONE, Answer, Cached, Shape, Usage
from wastegate.local.messages import Piece, Refused, Sampling
from wastegate.local.metrics import Metrics
from wastegate.local.requests import SEED_BITS, Ask, RequestError, parse_ask, parse_body
from wastegate.local.tokenizer import ChatTemplateError, Tokenizer, Tokens
from wastegate.openai.errors import error_body, error_event

RETRY_AFTER = "1"
_EVENT_STREAM = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def error(status: int, message: str, *, param: str | None = None, code: str | None = None) -> web.Response:
    """An error in OpenAI's shape; 503 says when to come back."""
    headers = {"Retry-After": RETRY_AFTER} if status == 503 else None
    body = error_body(status, message, param=param, code=code)
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


class Answers:
    """The two completion routes."""

    def __init__(self, child: Child, metrics: Metrics, *, model: str, context: int, prefix_caching: bool) -> None:
        self._child = child
        self._metrics = metrics
        self._model = model
        self._context = context
        self._caching = prefix_caching
        self.tokenizer: Tokenizer | None = None
        """None until it is loaded; calls are refused so long."""
        self.draining = False
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Return once no call is being answered."""
        await self._idle.wait()

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/chat/completions``"""
        return await self._answer(request, chat=True)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/completions``"""
        return await self._answer(request, chat=False)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        if self.draining:
            refusal = error(503, "this engine is shutting down; send the call elsewhere")
            refusal.force_close()
            return refusal
        self._open += 1
        self._idle.clear()
        try:
            return await self._serve(request, chat=chat)
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def _serve(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        arrived = time.perf_counter()
        if self.tokenizer is None:
            return error(503, "the engine is loading; try again shortly")
        ask = parse_ask(parse_body(await request.read()), chat=chat, model=self._model)
        prompt = await self._tokens(ask, self.tokenizer)
        sampling = self._sampling(ask, prompt.size)
        given = request.headers.get("X-Request-Id", "")
        id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        shape = Shape(
            chat=chat, id=("chatcmpl-" if chat else "cmpl-") + id, created=int(time.time()), model=self._model,
            usage=ask.include_usage,
        )  # fmt: skip
        call = self._child.submit(prompt.tobytes(), sampling, ask.n, ask.priority, arrived)
        tally = Tally(ask.n, prompt.size, estimated=self._caching)
        headers = {"X-Request-Id": id}
        outcome = "left"
        try:
            if ask.stream:
                response = await self._stream(request, call, shape, tally, headers)
            else:
                response = await self._whole(call, shape, tally, headers)
            outcome = tally.outcome
            return response
        finally:
            self._child.drop(call)
            self._metrics.outcomes[outcome] += 1
            if tally.done:
                self._metrics.whole.add(time.perf_counter() - arrived)

    async def _tokens(self, ask: Ask, tokenizer: Tokenizer) -> Tokens:
        if not isinstance(ask.prompt, str):
            wrong = next((token for token in ask.prompt if not 0 <= token < tokenizer.vocabulary), None)
            if wrong is not None:
                raise RequestError(
                    f"prompt holds token {wrong}; the vocabulary has {tokenizer.vocabulary}, from 0", "prompt"
                )
            return np.array(ask.prompt, dtype=np.int64)
        try:
            text = ask.prompt if ask.messages is None else _rendered(tokenizer, ask.messages, ask.continues)
        except ChatTemplateError as problem:
            raise RequestError(str(problem), "messages") from problem
        return await tokenizer.tokens(text, special=ask.messages is None)

    def _sampling(self, ask: Ask, prompt: int) -> Sampling:
        """Room for the answer, within the context. Raises :class:`RequestError`."""
        what = "messages" if ask.messages is not None else "prompt"
        room = self._context - prompt
        if room < 1:
            raise RequestError(
                f"the prompt is {prompt} tokens and the context is {self._context}, prompt and answer together; "
                "shorten the prompt", what, code="context_length_exceeded",
            )  # fmt: skip
        if ask.max_tokens is not None and ask.max_tokens > room:
            raise RequestError(
                f"the prompt is {prompt} tokens and max_tokens is {ask.max_tokens}, together more than the context of "
                f"{self._context}; shorten the prompt or ask for at most {room}", "max_tokens",
                code="context_length_exceeded",
            )  # fmt: skip
        return Sampling(
            max_tokens=room if ask.max_tokens is None else ask.max_tokens,
            temperature=ask.temperature, top_p=ask.top_p, top_k=ask.top_k, min_p=ask.min_p,
            seed=int.from_bytes(os.urandom(8)) & SEED_BITS if ask.seed is None else ask.seed,
            presence_penalty=ask.presence_penalty, frequency_penalty=ask.frequency_penalty,
            repetition_penalty=ask.repetition_penalty, stop=ask.stop, ignore_eos=ask.ignore_eos,
        )  # fmt: skip

    async def _whole(self, call: Call, shape: Shape, tally: Tally, headers: dict[str, str]) -> web.StreamResponse:
        texts: list[list[str]] = [[] for _ in tally.finishes]
        while not tally.done:
            for news in await call.news():
                if isinstance(news, Refused):
                    tally.refused = news
                    return error(news.status, news.message)
                texts[news.index].append(news.text)
                tally.add(news)
        answers = [Answer("".join(text), finish) for text, finish in zip(texts, tally.finishes, strict=True)]
        body = shape.whole(answers, tally.usage())
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _stream(
        self, request: web.Request, call: Call, shape: Shape, tally: Tally, headers: dict[str, str]
    ) -> web.StreamResponse:
        news = await call.news()
        if isinstance(news[0], Refused):  # nothing is sent yet: the status can still say it
            tally.refused = news[0]
            return error(news[0].status, news[0].message)
        response = web.StreamResponse(headers={**_EVENT_STREAM, **headers})
        await response.prepare(request)
        out = [shape.opening(index) for index in range(len(tally.finishes))]
        while True:
            for piece in news:
                if isinstance(piece, Refused):
                    tally.refused = piece
                    await response.write(b"".join(out) + error_event(piece.status, piece.message))
                    return response
                tally.add(piece)
                if piece.text:
                    out.append(shape.content(piece.index, piece.text))
                if piece.finish:
                    out.append(shape.closing(piece.index, piece.finish))
            if tally.done:
                break
            if out:
                await response.write(b"".join(out))
                out = []
            news = await call.news()
        out.append(shape.usage(tally.usage()))
        out.append(DONE)
        await response.write_eof(b"".join(out))
        return response


class Tally:
    """How far a call's answers have come."""

    def __init__(self, n: int, prompt: int, *, estimated: bool) -> None:
        self.finishes = [""] * n
        self.refused: Refused | None = None
        self._tokens = [0] * n
        self._prompt = prompt
        self._cached = 0
        self._estimated = estimated

    def add(self, piece: Piece) -> None:
        self._tokens[piece.index] = piece.tokens
        self.finishes[piece.index] = piece.finish
        if not piece.index:  # the other answers find the first one's prompt in the cache: that is no saving on it
            self._cached = piece.cached

    @property
    def done(self) -> bool:
        return all(self.finishes)

    @property
    def outcome(self) -> str:
        """One of ``metrics.OUTCOMES``."""
        if self.refused is not None:
            return "refused" if self.refused.fresh else "failed"
        return self.finishes[0] or "left"

    def usage(self) -> Usage:
        return Usage.of(self._prompt, sum(self._tokens), Cached(self._cached, self._estimated))


def _rendered(tokenizer: Tokenizer, messages: tuple[dict[str, str], ...], continues: bool) -> str:
    if continues:  # the header of an answer, then what there is of it
        return tokenizer.render(messages[:-1]) + messages[-1]["content"]
    return tokenizer.render(messages)
