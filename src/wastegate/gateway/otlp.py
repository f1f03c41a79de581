"""Spans and metrics as OpenTelemetry's SDK has them, sent by OTLP over HTTP. It needs the extra ``otel`` and is loaded
only where telemetry is on; which calls are sent, and when, is ``gateway.telemetry``'s."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from wastegate import __version__
from wastegate.core import spans
from wastegate.core.ledger import Entry

_SCOPE = InstrumentationScope("wastegate", __version__)
_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""The conventions' own buckets."""


class Sender:
    """The connection to one collector. Every method blocks; one thread uses it."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], timeout: float, names: Mapping[str, str]) -> None:
        """``endpoint``: the collector's base address; ``timeout``: seconds for one export with all its retries;
        ``names``: the resource's attributes."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it has a line for every retry: we have one
        base = endpoint.rstrip("/")
        self._resource = Resource(names)
        self._spans = OTLPSpanExporter(f"{base}/v1/traces", headers=dict(headers), timeout=timeout)
        self._metrics = OTLPMetricExporter(f"{base}/v1/metrics", headers=dict(headers), timeout=timeout)
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider((self._reader,), self._resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("wastegate", __version__)
        name = "gen_ai.client.inference"
        self._duration = meter.create_histogram(
            f"{name}.duration",
            "s",
            "From arrival to the end of the call.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._first = meter.create_histogram(
            f"{name}.time_to_first_chunk",
            "s",
            "From arrival to the first token of a stream.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._prompt = meter.create_counter(f"{name}.usage.input_tokens", "{token}", "Prompt tokens of all attempts.")
        self._cached = meter.create_counter(
            f"{name}.usage.cache_read.input_tokens", "{token}", "Of these: found in a prefix cache, as engines say."
        )
        self._output = meter.create_counter(f"{name}.usage.output_tokens", "{token}", "Output tokens of all attempts.")

    def count(self, entry: Entry) -> None:
        """Add a call to the metrics."""
        labels, used = spans.labels(entry), spans.usage(entry)
        self._duration.record(max(entry.ended - entry.arrived, 0.0), labels)
        wait = spans.first_token(entry) if entry.stream else None
        if wait is not None:
            self._first.record(max(wait, 0.0), labels)
        for counter, tokens in ((self._prompt, used.prompt), (self._cached, used.cached), (self._output, used.output)):
            if tokens:
                counter.add(tokens, labels)

    def send_spans(self, some: Sequence[spans.Span]) -> bool:
        """False where the collector did not take them."""
        return self._spans.export([self._readable(span) for span in some]) is SpanExportResult.SUCCESS

    def send_metrics(self) -> bool:
        """Send what has been counted since the start; False where the collector did not take it."""
        data = self._reader.get_metrics_data()
        return data is None or self._metrics.export(data) is MetricExportResult.SUCCESS

    def close(self) -> None:
        """End what waits for another attempt, in whichever thread that is; nothing is sent any more."""
        self._spans.shutdown()  # type: ignore[no-untyped-call]
        self._metrics.shutdown()

    def _readable(self, span: spans.Span) -> ReadableSpan:
        parent = SpanContext(span.trace, span.parent, True, _SAMPLED) if span.parent else None
        return ReadableSpan(
            span.name,
            SpanContext(span.trace, span.id, False, _SAMPLED),
            parent,
            self._resource,
            span.attributes,
            [Event(event.name, timestamp=_nanoseconds(event.at)) for event in span.events],
            kind=_KINDS[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
            start_time=_nanoseconds(span.start),
            end_time=_nanoseconds(span.end),
            instrumentation_scope=_SCOPE,
        )


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
