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
from wastegate.local.chunks import DONE, Answer, Shape, Usage
from wastegate.local.messages import Refused, Sampling
from wastegate.local.metrics import Metrics
from wastegate.local.requests import SEED_BITS, Ask, RequestError, parse_ask, parse_body
from wastegate.local.tokenizer import ChatTemplateError, Tokenizer, Tokens
from wastegate.openai.errors import error_body, error_event

RETRY_AFTER = "1"
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def error(status: int, message: str, *, param: str | None = None, code: str | None = None) -> web.Response:
    """An error in OpenAI's shape; 503 says when to come back."""
    headers = {"Retry-After": RETRY_AFTER} if status == 503 else None
    body = error_body(status, message, param=param, code=code)
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


class Answers:
    """The two completion routes."""

    def __init__(self, child: Child, tokenizer: Tokenizer, metrics: Metrics, *, model: str, context: int) -> None:
        self._child = child
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._model = model
        self._context = context
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
        arrived = time.perf_counter()
        if self.draining:
            refusal = error(503, "this engine is shutting down; send the call elsewhere")
            refusal.force_close()
            return refusal
        body = await request.read()
        ask = parse_ask(parse_body(body), chat=chat, model=self._model)
        tokens = await self._tokens(ask)
        sampling = self._sampling(ask, tokens.size)
        given = request.headers.get("X-Request-Id", "")
        id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        shape = Shape(
            chat=chat, id=("chatcmpl-" if chat else "cmpl-") + id, created=int(time.time()), model=self._model,
            usage=ask.include_usage,
        )  # fmt: skip
        call = self._child.submit(tokens.astype("<i8").tobytes(), sampling, ask.n, ask.priority, arrived)
        outcome = "left"
        self._open += 1
        self._idle.clear()
        response: web.StreamResponse
        try:
            if ask.stream:
                response, outcome = await self._stream(request, call, shape, ask, tokens.size, id)
            else:
                response, outcome = await self._whole(call, shape, ask, tokens.size, id)
            return response
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()
            self._child.drop(call)
            self._metrics.outcomes[outcome] += 1
            if outcome in ("stop", "length"):
                self._metrics.whole.add(time.perf_counter() - arrived)

    async def _tokens(self, ask: Ask) -> Tokens:
        if not isinstance(ask.prompt, str):
            wrong = next((token for token in ask.prompt if not 0 <= token < self._tokenizer.vocabulary), None)
            if wrong is not None:
                raise RequestError(
                    f"prompt holds token {wrong}; the vocabulary has {self._tokenizer.vocabulary}, from 0", "prompt"
                )
            return np.array(ask.prompt, dtype=np.int64)
        try:
            text = ask.prompt if ask.messages is None else self._tokenizer.render(ask.messages)
        except ChatTemplateError as problem:
            raise RequestError(str(problem), "messages") from problem
        return await self._tokenizer.tokens(text, special=ask.messages is None)

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

    async def _whole(self, call: Call, shape: Shape, ask: Ask, prompt: int, id: str) -> tuple[web.Response, str]:
        texts = [""] * ask.n
        finishes = [""] * ask.n
        counts = [0] * ask.n
        while not all(finishes):
            for news in await call.news():
                if isinstance(news, Refused):
                    return error(news.status, news.message), "refused" if news.fresh else "failed"
                texts[news.index] += news.text
                finishes[news.index] = news.finish
                counts[news.index] = news.tokens
        answers = [Answer(text, finish) for text, finish in zip(texts, finishes, strict=True)]
        body = shape.whole(answers, Usage.of(prompt, sum(counts)))
        response = web.Response(body=body, content_type="application/json", headers={"X-Request-Id": id})
        return response, finishes[0]

    async def _stream(
        self, request: web.Request, call: Call, shape: Shape, ask: Ask, prompt: int, id: str
    ) -> tuple[web.StreamResponse, str]:
        news = await call.news()
        if isinstance(news[0], Refused):  # nothing is sent yet: the status can still say it
            return error(news[0].status, news[0].message), "refused" if news[0].fresh else "failed"
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache",
                     "X-Request-Id": id}
        )  # fmt: skip
        await response.prepare(request)
        counts = [0] * ask.n
        left = ask.n
        finish = ""
        out: list[bytes] = [shape.opening(index) for index in range(ask.n)]
        while True:
            for piece in news:
                if isinstance(piece, Refused):
                    await response.write(b"".join(out) + error_event(piece.status, piece.message))
                    return response, "failed"
                counts[piece.index] = piece.tokens
                if piece.text:
                    out.append(shape.content(piece.index, piece.text))
                if piece.finish:
                    out.append(shape.closing(piece.index, piece.finish))
                    left -= 1
                    finish = finish or piece.finish
            if not left:
                break
            if out:
                await response.write(b"".join(out))
                out = []
            news = await call.news()
        if ask.include_usage:
            out.append(shape.usage(Usage.of(prompt, sum(counts))))
        out.append(DONE)
        await response.write_eof(b"".join(out))
        return response, finish
