"""From an HTTP request to a Call: which path, which labels, which body goes upstream. The prompt passes through; it
is neither kept nor logged."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec
from msgspec import Struct

from wastegate.core.call import BYTES_PER_TOKEN, Call
from wastegate.core.lifecycle import Lever, lifecycle
from wastegate.core.plan import Timers
from wastegate.gateway.answer_cache import Answers, Maker
from wastegate.gateway.flights import Special
from wastegate.gateway.heads import Headers, Known, Labels, label, read_labels
from wastegate.gateway.hub import Hub
from wastegate.gateway.keys import Keys
from wastegate.gateway.relay import Flight, Outgoing
from wastegate.gateway.watch import Watch
from wastegate.levers import Config as Levers
from wastegate.levers import active
from wastegate.openai.chat import Request, RequestError, read_request, with_usage
from wastegate.openai.errors import error_body

if TYPE_CHECKING:
    from wastegate.gateway.serve import ClientConnection, Limits


class Route(Struct, frozen=True, forbid_unknown_fields=True):
    """A name for some of the traffic, with timers of its own. The first route that matches counts."""

    name: str
    match: str
    """A shell pattern for the path, such as ``/v1/chat/*``."""
    timers: Timers = Timers()
    failover: Literal["deterministic", "always", "never"] = "deterministic"
    """Which streams that break may go on from their text on another replica: those at temperature 0, all, or none.
    A call with tools or guided decoding, or with several choices, never does."""
    levers: Levers = Levers()
    """Settings of ``[levers]`` for this route alone."""
    answer_seconds: float = 0.0
    """For so long an answer at temperature 0 is kept and given again to its tenant's calls that ask exactly the same.
    0: none is."""


class Incoming:
    """A request as it is read from the wire. Header names are lower case."""

    __slots__ = (
        "body", "body_size", "header_bytes", "headers", "headers_done", "http_10", "keep", "known", "method", "url",
    )  # fmt: skip

    def __init__(self, known: Known | None = None) -> None:
        self.known = known
        """Where its head has been read before."""
        self.url = known.url if known is not None else b""
        self.method = b"POST" if known is not None else b""
        self.headers: Headers = known.headers if known is not None else []
        self.headers_done = False
        self.header_bytes = 0
        self.body: list[bytes] = []
        self.body_size = 0
        self.keep = True
        self.http_10 = False

    def header(self, name: bytes) -> bytes:
        for key, value in self.headers:
            if key == name:
                return value
        return b""


class Responder(Protocol):
    def respond(self, status: int, content_type: bytes, body: bytes, extra: bytes = b"") -> None: ...

    def fly(self, flight: Flight, request_id: bytes) -> None: ...


# Paths that are completions: their bodies are read for what policy needs.
_COMPLETIONS = (b"/v1/chat/completions", b"/v1/completions")
# Other paths of engines that take a POST: they pass through the same accounting.
_OTHERS = (
    b"/v1/embeddings", b"/v1/responses", b"/v1/messages", b"/v1/rerank", b"/rerank", b"/v1/score", b"/score",
    b"/pooling", b"/tokenize", b"/detokenize",
)  # fmt: skip
_OPEN = (b"/health", b"/ready")
"""Answered to anybody: a load balancer has no key."""

# Of these: answered without running the model.
_WITHOUT_MODEL = (b"/tokenize", b"/detokenize")

_MODEL_CHARACTERS = 256
_MOST_PATHS = 1024
"""Paths of applications whose routes are remembered."""


class Gate:
    """What every client connection is handed: the hub, the routes, the limits, and the way in."""

    def __init__(self, hub: Hub, routes: Sequence[Route], timers: Timers, limits: Limits, levers: Levers) -> None:
        self.hub = hub
        self.limits = limits
        self.connections: set[ClientConnection] = set()
        self.draining = False
        self.keys: Keys | None = None
        """None: anybody may call."""
        self._boot = secrets.token_hex(5)
        self._sequence = 0
        self._watch = Watch()
        self._answers = Answers()
        self._routes: dict[bytes, tuple[str, Route, tuple[Lever, ...], Special | None]] = {}
        self.set_routes(routes, timers, levers)

    def set_routes(self, routes: Sequence[Route], timers: Timers, levers: Levers) -> None:
        """Match every known path once; a request then only looks its path up."""
        table: dict[bytes, tuple[str, Route, tuple[Lever, ...], Special | None]] = {}
        for raw in (*_COMPLETIONS, *_OTHERS):
            path = raw.decode()
            own = Route(path, path, timers, levers=levers)
            route = next((route for route in routes if fnmatchcase(path, route.match)), own)
            table[raw] = path, route, active(route.levers), self._special(route)
        self._routes = table
        self._known = dict(table)
        self._listed = tuple(routes)

    def _special(self, route: Route) -> Special | None:
        return Special.of(route.levers.streaming, self._watch, self._answers, route.answer_seconds)

    def serve(self, incoming: Incoming, client: Responder) -> None:
        """Answer at once, or let the request fly as a call."""
        path = incoming.url.partition(b"?")[0]
        if self.keys is not None and path not in _OPEN and not self.keys.admit(incoming.headers):
            self._stranger(client)
        elif incoming.method == b"POST" and (path in _COMPLETIONS or path in _OTHERS):
            self._call(incoming, path, client)
        elif incoming.method in (b"GET", b"HEAD") and path == b"/v1/models":
            client.respond(200, b"application/json", self._models())
        elif incoming.method in (b"GET", b"HEAD") and path in (b"/health", b"/ready"):
            self._health(path, client)
        elif incoming.method == b"POST" and (known := self._below(path)):
            self._call(incoming, known, client, path)
        else:
            self._unknown(incoming, path, client)

    def _below(self, path: bytes) -> bytes:
        """The path that engines know, at the end of an application's own that some route is for; else empty."""
        known = next((known for known in (*_COMPLETIONS, *_OTHERS) if path.endswith(known)), b"")
        if not known or path in self._routes:
            return known
        text = path.decode("latin-1")
        route = next((route for route in self._listed if fnmatchcase(text, route.match)), None)
        if route is None:
            return b""
        if len(self._routes) >= _MOST_PATHS:  # clients choose them
            self._routes = dict(self._known)
        self._routes[path] = known.decode(), route, active(route.levers), self._special(route)
        return known

    def _stranger(self, client: Responder) -> None:
        self.hub.tally.reject("key")
        text = "the API key is missing or not one of this gateway's: send 'Authorization: Bearer …' with a good one"
        body = error_body(401, text, code="invalid_api_key")
        client.respond(401, b"application/json", body, b"www-authenticate: Bearer\r\n")

    def _call(self, incoming: Incoming, path: bytes, client: Responder, own: bytes = b"") -> None:
        """``own``: the application's path, of which the engines know only the end, ``path``."""
        hub = self.hub
        if self.draining:
            _respond_error(client, 503, "the gateway is shutting down; try again shortly", b"retry-after: 2\r\n")
            return
        if hub.recorder.refusing:
            hub.tally.reject("ledger")
            text = f"calls cannot be written down ({hub.recorder.failing}), so none is taken; free the disk"
            _respond_error(client, 503, text, b"retry-after: 5\r\n")
            return
        body = incoming.body[0] if len(incoming.body) == 1 else b"".join(incoming.body)
        try:
            request = read_request(body)
        except RequestError as error:
            hub.tally.reject("body")
            client.respond(400, b"application/json", error_body(400, str(error), param=error.param))
            return
        prompt = request.text
        text, route, levers, special = self._routes[own or path]
        timers = route.timers
        labels = incoming.known.labels if incoming.known is not None else read_labels(incoming.headers)
        call = self._label(labels, path, text, route, request, len(body), len(prompt))
        # A key that opens this door goes no further.
        authorization = labels.authorization if self.keys is None else b""
        kind: Maker = Flight
        if special is not None:
            call, kind = special.dress(call, request, body, prompt, authorization)
        if call.stream and not call.wants_usage:
            body = with_usage(body, request)
        url = path + incoming.url[len(own) :] if own else incoming.url
        out = Outgoing(url, labels.forwarded, body, prompt, authorization)
        flight = kind(hub, client, call, lifecycle(call, levers, timers, hub.rules), out, timers)  # type: ignore[arg-type]
        client.fly(flight, call.id.encode())

    def _label(
        self, labels: Labels, path: bytes, text: str, route: Route, request: Request, size: int, prompt_size: int
    ) -> Call:
        self._sequence += 1
        options = request.stream_options
        most = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
        return Call(
            id=f"{self._boot}-{self._sequence:x}",
            arrived=self.hub.now(),
            route=route.name,
            path=text,
            model=(request.model or "")[:_MODEL_CHARACTERS],
            tenant=labels.tenant,
            stream=bool(request.stream),
            wants_usage=path not in _COMPLETIONS or bool(options is not None and options.include_usage),
            prompt_bytes=prompt_size,
            prompt_tokens=size // BYTES_PER_TOKEN if path not in _WITHOUT_MODEL else 0,
            model_runs=path not in _WITHOUT_MODEL,
            scope=request.scope,
            max_tokens=most,
            n=request.n or 1,
            deterministic=request.deterministic,
            may_continue=_may_continue(request, route),
            priority=request.priority or 0,
            tags=labels.tags,
            client_id=labels.client_id,
            traceparent=labels.traceparent,
        )

    def _models(self) -> bytes:
        names = dict.fromkeys(m for state in self.hub.world.states for m in state.replica.models)
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "wastegate"} for name in names]
        return msgspec.json.encode({"object": "list", "data": data})

    def _health(self, path: bytes, client: Responder) -> None:
        ready = sum(state.state == "ready" for state in self.hub.world.states)
        body = msgspec.json.encode({"status": "ok", "replicas": len(self.hub.world.states), "ready": ready})
        status = 200 if path == b"/health" or (ready and not self.draining) else 503
        client.respond(status, b"application/json", body)

    def _unknown(self, incoming: Incoming, path: bytes, client: Responder) -> None:
        self.hub.tally.reject("path")
        shown = label(path)
        known = ", ".join(p.decode() for p in _COMPLETIONS)
        if path in _COMPLETIONS or path in _OTHERS:
            method = label(incoming.method)
            _respond_error(client, 405, f"{shown} takes POST, not {method}", b"allow: POST\r\n")
        else:
            _respond_error(client, 404, f"{shown} is not served here; POST to {known}, or GET /v1/models")


def _may_continue(request: Request, route: Route) -> bool:
    allowed = route.failover == "always" or (route.failover == "deterministic" and request.deterministic)
    return allowed and bool(request.stream) and not request.structured and (request.n or 1) == 1


def _respond_error(client: Responder, status: int, message: str, extra: bytes = b"") -> None:
    client.respond(status, b"application/json", error_body(status, message), extra)
