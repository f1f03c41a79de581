"""What the server under load says of itself: its models, its context, its tokenizer. Asked before the run only; no
request of the run passes through here."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from wastegate.load.calibrate import Tokens
from wastegate.load.prompts import CHAT

ASK_SECONDS = 30.0
"""Longest wait for one answer about the server itself."""

MARK = {"x-wastegate-tag-purpose": "calibration"}
"""Tells the few calls before a run from the run's own in a ledger."""


class TargetError(RuntimeError):
    """The server cannot be reached, or did not say what is needed. The text says what to do."""


class Model(Struct, frozen=True):
    id: str
    context: int | None = None


class Target:
    """One server, at ``base`` (with or without a final /v1)."""

    def __init__(self, session: aiohttp.ClientSession, base: str, patience: float = ASK_SECONDS) -> None:
        self._session = session
        self._patience = patience
        self.posted = 0
        """POST requests made so far: a gateway's ledger has them too, under the tag below."""
        self.base = base.rstrip("/").removesuffix("/v1")
        if not self.base.startswith(("http://", "https://")):
            raise TargetError(f"--url {base}: must begin with http:// or https://, such as http://127.0.0.1:8080")

    async def model(self, wanted: str) -> Model:
        """The model to ask for: ``wanted``, or the only one that is served.

        Raises TargetError if the server cannot be reached, or serves several and none is named.
        """
        status, answer = await self._ask("GET", "/v1/models")
        served = _models(answer)
        if wanted:  # a gateway may route names that it does not list
            return next((model for model in served if model.id == wanted), Model(wanted))
        if not served:
            raise TargetError(f"{self.base}/v1/models answered {status} and names no model: give --model NAME")
        if len(served) > 1:
            names = ", ".join(model.id for model in served)
            raise TargetError(f"{self.base} serves {names}: choose one with --model NAME")
        return served[0]

    async def tokenize(self, model: str, path: str, text: str) -> Tokens | None:
        """The text as the route ``path`` counts it, or None where the server has no tokenizer route."""
        body: dict[str, Any] = {"model": model}
        if path == CHAT:
            body |= {"messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
        else:
            body["prompt"] = text
        return await self.count(body)

    async def count(self, body: dict[str, Any]) -> Tokens | None:
        """POST /tokenize in vLLM's shape: {"model", "prompt"} or {"model", "messages", "add_generation_prompt"}."""
        status, answer = await self._ask("POST", "/tokenize", body)
        if status != 200 or not isinstance(answer, dict) or type(answer.get("count")) is not int:
            return None
        ids = answer.get("tokens")
        whole = isinstance(ids, list) and all(type(token) is int for token in ids)
        context = answer.get("max_model_len")
        return Tokens(answer["count"], tuple(ids or ()) if whole else (), context if type(context) is int else None)

    async def measure(self, model: str, path: str, text: str) -> int | None:
        """The prompt tokens that the server reports for a real call with one token of output."""
        body: dict[str, Any] = {"model": model, "max_tokens": 1}
        if path == CHAT:
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        status, answer = await self._ask("POST", path, body)
        usage = answer.get("usage") if status == 200 and isinstance(answer, dict) else None
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return tokens if type(tokens) is int else None

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        data = msgspec.json.encode(body) if body is not None else None
        headers = {"content-type": "application/json", **MARK} if body is not None else {}
        self.posted += body is not None
        url = self.base + path
        wait = aiohttp.ClientTimeout(total=self._patience)
        try:
            async with self._session.request(method, url, data=data, headers=headers, timeout=wait) as response:
                raw = await response.read()
        except TimeoutError:
            raise TargetError(f"{url} did not answer within {self._patience:g} s") from None
        except aiohttp.ClientError as error:
            raise TargetError(f"{url} cannot be reached: {error}. Is the server running there?") from None
        if response.status == 401:
            raise TargetError(f"{url} answered 401: give the key with --api-key or --api-key-env")
        try:
            return response.status, msgspec.json.decode(raw)
        except msgspec.DecodeError:
            return response.status, None


def _models(answer: Any) -> list[Model]:
    listed = answer.get("data") if isinstance(answer, dict) else None
    models: list[Model] = []
    for one in listed if isinstance(listed, list) else []:
        if isinstance(one, dict) and isinstance(one.get("id"), str):
            context = one.get("max_model_len")
            models.append(Model(one["id"], context if type(context) is int else None))
    return models
