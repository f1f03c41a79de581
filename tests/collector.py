"""An OpenTelemetry collector on a loopback port: OTLP over HTTP, decoded by the protocol's own messages.

async with Collector() as collector:
    ...
    spans = await collector.spans(2)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Self

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

LIMIT = 10.0


class Collector:
    """What it was sent; ``status`` is what it answers, ``hold`` keeps it from answering while clear."""

    def __init__(self) -> None:
        self.traces: list[ExportTraceServiceRequest] = []
        self.totals: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.status = {"/v1/traces": 200, "/v1/metrics": 200}
        self.hold = asyncio.Event()
        self.hold.set()
        self.asked = asyncio.Event()
        """Something has come."""
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/{signal}", self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.hold.set()
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.asked.set()
        await self.hold.wait()
        status = self.status[request.path]
        if status == 200 and request.path == "/v1/traces":
            self.traces.append(ExportTraceServiceRequest.FromString(body))
        elif status == 200:
            self.totals.append(ExportMetricsServiceRequest.FromString(body))
        return web.Response(status=status)

    @property
    def taken(self) -> list[Span]:
        """Every span so far."""
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    async def spans(self, count: int) -> list[Span]:
        """Wait for so many."""
        async with asyncio.timeout(LIMIT):
            while len(self.taken) < count:  # noqa: ASYNC110  # they come from another thread
                await asyncio.sleep(0.01)
        return self.taken

    def metrics(self) -> dict[str, Metric]:
        """As the last export has them."""
        return {
            metric.name: metric
            for resource in self.totals[-1].resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def values(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    """Attributes as Python has them."""
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(item) for item in value.array_value.values)
    return getattr(value, kind) if kind is not None else None
