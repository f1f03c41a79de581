"""A trace replayed against a server, from the file to the report: what stands in which order. How each part is done
stays in its own room."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import aiohttp
import msgspec
from msgspec import Struct

from wastegate.load.calibrate import by_tokenizer, by_usage
from wastegate.load.client import Answer, Clock, Shot, shoot
from wastegate.load.openloop import Loop, Make, Progress, Result, Send, Stop, run
from wastegate.load.prompts import CHAT, PLAIN, Endpoint, Prompts, Recipe
from wastegate.load.report import Facts, Report, summarise
from wastegate.load.rows import Format, Row, Trace
from wastegate.load.schedule import TOO_LONG, Misfit, Pace, Planned, fit, schedule
from wastegate.load.target import Model, Target
from wastegate.load.traces import read

IgnoreEos = Literal["auto", "always", "never"]
Sender = Callable[[Sequence[Planned], Make, Send, Clock, Loop, Stop, Progress], Awaitable[list[Result]]]
"""How rows are sent: the open loop's ``run``, or another of its shape."""


class Config(Struct, frozen=True, kw_only=True):
    """One replay, as asked for."""

    trace: Path
    url: str
    format: Format | None = None
    pace: Pace = Pace()
    loop: Loop = Loop()
    model: str = ""
    endpoint: Endpoint = "auto"
    on_misfit: Misfit = "clip"
    ignore_eos: IgnoreEos = "auto"
    """"auto": where a trace gives the output's length, so that the answer has it; not for rows with their own text."""
    temperature: float | None = None
    stream: bool = True
    timeout: float = 600.0
    api_key: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    tenant: str = ""
    """For rows that name none."""
    tenant_header: str = "x-wastegate-tenant"
    fresh_connections: bool = False
    params: dict[str, Any] = {}
    """Members that every request carries, over those of its row."""
    prompt_seed: int | None = None
    """For the prompts' words; None takes the pace's seed. Another one makes other words at the same arrivals."""

    def __post_init__(self) -> None:
        if self.timeout <= 0:
            raise ValueError(f"--timeout is {self.timeout:g}; it must be above 0 seconds")


class Known(Struct, frozen=True):
    """What was found out about a server before the first row, so that a second run need not ask again."""

    model: Model
    recipe: Recipe | None
    context: int | None


class Replayed(Struct, frozen=True):
    report: Report
    results: tuple[Result, ...]


class Replay:
    """One run, made ready step by step. ``progress`` may be watched while :meth:`go` is at work."""

    def __init__(
        self, config: Config, trace: Trace | None = None, known: Known | None = None, sender: Sender = run
    ) -> None:
        self.config = config
        self.known = known
        """Handed in, or found out by :meth:`go`."""
        self.stop = Stop()
        self.sending = False
        """Rows are being sent, so that a stop still has something to report."""
        self.trace = trace or read(config.trace, config.format, config.pace.limit)
        self.plan: tuple[Planned, ...] = schedule(self.trace, config.pace)
        self.progress = Progress(sum(not planned.skip for planned in self.plan))
        self.id = secrets.token_hex(4)
        """Begins every request's own id, so that a ledger can be joined to a run."""
        self._notes = list(self.trace.notes)
        self._sender = sender
        self._refused: set[str] = set()
        """Parameters that the server has refused; left out of every later request."""

    async def go(self) -> Replayed:
        """Send the whole plan. Raises TargetError before the first row if the server cannot be used."""
        async with self._session() as session:
            target = Target(session, self.config.url)
            if self.known is None:
                model = await target.model(self.config.model)
                self.known = Known(model, *await self._measured(target, model))
            model, recipe, context = self.known.model, self.known.recipe, self.known.context
            self.plan = await self._fitted(target, model, context)
            self.progress.total = sum(not planned.skip for planned in self.plan)
            requests = Requests(self.config, model.id, recipe, self.id, self._refused)

            async def send(shot: Shot, answer: Answer) -> None:
                await shoot(session, target.base, shot, answer, perf_counter)
                again = self._without_refused(shot, answer)
                if again is not None:
                    sent = answer.sent
                    await shoot(session, target.base, again, answer, perf_counter)
                    answer.sent = sent

            self.sending = True
            results = await self._sender(
                self.plan, requests.make, send, perf_counter, self.config.loop, self.stop, self.progress
            )
        return Replayed(summarise(results, self.progress, self._facts(target, model, recipe)), tuple(results))

    def _session(self) -> aiohttp.ClientSession:
        headers = {"authorization": f"Bearer {self.config.api_key}"} if self.config.api_key else {}
        # Servers close idle connections after 5 s and more; one that is dropped first cannot be closed under a request.
        connector = (
            aiohttp.TCPConnector(limit=0, force_close=True)
            if self.config.fresh_connections
            else aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
        )
        forever = aiohttp.ClientTimeout(total=None)  # each request has its own bound, from the row
        return aiohttp.ClientSession(connector=connector, headers=headers, timeout=forever, read_bufsize=1 << 18)

    async def _measured(self, target: Target, model: Model) -> tuple[Recipe | None, int | None]:
        """How prompts are to be made, and the model's context, as far as the server tells."""
        probe = await target.tokenize(model.id, PLAIN, "probe")
        context = model.context or (probe.context if probe else None)
        if all(planned.input_tokens is None for planned in self.plan):
            return None, context
        recipe = await by_tokenizer(lambda path, text: target.tokenize(model.id, path, text)) if probe else None
        if recipe is not None:
            if not recipe.exact:
                self._notes.append("words do not add up exactly under this tokenizer: prompt lengths are estimates")
            return recipe, context
        paths = {"chat": (CHAT,), "completions": (PLAIN,)}.get(self.config.endpoint, (CHAT, PLAIN))
        recipe = await by_usage(lambda path, text: target.measure(model.id, path, text), paths)
        by = "the usage of a few short calls before the run" if recipe.source == "usage" else "bytes per token"
        self._notes.append(f"{target.base} has no /tokenize: prompt lengths are estimates from {by}")
        return recipe, context

    async def _fitted(self, target: Target, model: Model, context: int | None) -> tuple[Planned, ...]:
        if context is None:
            self._notes.append("the server does not say how long its context is: rows that do not fit will fail")
            return self.plan
        fitted: list[Planned] = []
        for planned in self.plan:
            row = planned.row
            if row.messages is None and row.prompt is None:
                fitted.append(fit(planned, context, self.config.on_misfit))
            else:
                fitted.append(await self._own_text(target, model, planned, context))
        return tuple(fitted)

    async def _own_text(self, target: Target, model: Model, planned: Planned, context: int) -> Planned:
        """A row's own text is never cut: its output may be clipped, else the row is skipped."""
        body = _text_of(planned.row)
        wanted = planned.output_tokens or 1
        if planned.skip or len(msgspec.json.encode(body)) + wanted <= context:
            return planned  # a token is at least a byte, and the JSON around the text outweighs a template
        if planned.row.messages is not None:
            body["add_generation_prompt"] = True
        counted = await target.count({"model": planned.row.model or model.id, **body})
        if counted is None or counted.count + wanted <= context:
            return planned
        room = context - counted.count
        if room < 1 or self.config.on_misfit == "skip":
            return msgspec.structs.replace(planned, skip=TOO_LONG)
        return msgspec.structs.replace(planned, output_tokens=room, clipped=True)

    def _without_refused(self, shot: Shot, answer: Answer) -> Shot | None:
        """The same request without ignore_eos, if that is what the server refused; else None."""
        name = "ignore_eos"
        if answer.status != 400 or name not in answer.detail:
            return None
        body: dict[str, Any] = msgspec.json.decode(shot.body)
        if body.pop(name, None) is None:
            return None
        if name not in self._refused:
            self._refused.add(name)
            self._notes.append(f"the server refused {name}: sent without, so answers may end before their length")
        return msgspec.structs.replace(shot, body=msgspec.json.encode(body))

    def _facts(self, target: Target, model: Model, recipe: Recipe | None) -> Facts:
        return Facts(
            trace=self.trace.path,
            format=self.trace.format,
            url=target.base,
            model=model.id,
            seed=self.config.pace.seed,
            source=recipe.source if recipe else None,
            max_inflight=self.config.loop.max_inflight,
            interrupted=self.stop.asked.is_set(),
            calibration_calls=target.posted,
            notes=tuple(self._notes),
        )


class Requests:
    """Turns planned rows into requests."""

    def __init__(self, config: Config, model: str, recipe: Recipe | None, run_id: str, refused: set[str]) -> None:
        self._config = config
        self._model = model
        self._run_id = run_id
        self._refused = refused
        scale = float(config.pace.token_scale)
        seed = config.pace.seed if config.prompt_seed is None else config.prompt_seed
        self._prompts = (
            Prompts(recipe, seed=seed, token_scale=scale, endpoint=config.endpoint) if recipe is not None else None
        )

    def make(self, planned: Planned) -> Shot:
        row = planned.row
        body: dict[str, Any] = {"model": row.model or self._model}
        if row.messages is not None or row.prompt is not None or self._prompts is None:
            path = CHAT if row.messages is not None else PLAIN
            body |= _text_of(row)
        else:
            made = self._prompts.make(planned)
            path = made.path
            body |= {"messages": [{"role": "user", "content": made.text}]} if path == CHAT else {"prompt": made.text}
        body |= self._parameters(planned)
        return Shot(
            path=path,
            body=msgspec.json.encode(body),
            headers=self._headers(planned),
            timeout=self._config.timeout,
            hang_up=row.hang_up,
            id=f"{self._run_id}-{planned.number}",
        )

    def _parameters(self, planned: Planned) -> dict[str, Any]:
        config, row = self._config, planned.row
        members: dict[str, Any] = row.params | config.params
        if planned.output_tokens is not None:
            members["max_tokens"] = planned.output_tokens
        if config.stream and row.stream:
            members |= {"stream": True, "stream_options": {"include_usage": True}}
        if config.temperature is not None:
            members["temperature"] = config.temperature
        own_text = row.messages is not None or row.prompt is not None
        if config.ignore_eos == "always" or (config.ignore_eos == "auto" and not own_text):
            members["ignore_eos"] = True
        if config.ignore_eos == "never":
            members.pop("ignore_eos", None)
        for name in self._refused:
            members.pop(name, None)
        return members

    def _headers(self, planned: Planned) -> tuple[tuple[str, str], ...]:
        row = planned.row
        headers = list(self._config.headers)
        tenant = row.tenant or self._config.tenant
        if tenant and self._config.tenant_header:
            headers.append((self._config.tenant_header, tenant))
        if row.route:
            headers.append(("x-wastegate-tag-route", row.route))
        headers += [(f"x-wastegate-tag-{name}", value) for name, value in row.tags]
        return tuple(headers)


def _text_of(row: Row) -> dict[str, Any]:
    return {"messages": list(row.messages)} if row.messages is not None else {"prompt": row.prompt or ""}
