"""The engine that comes with wastegate, recorded while it served."""

from __future__ import annotations

from tests.engines.pages import readings, shown
from wastegate.engines import local
from wastegate.engines.exposition import parse
from wastegate.engines.meter import Meter
from wastegate.engines.readback import OFF, Effective
from wastegate.local.metrics import Metrics


def test_every_name_is_on_the_page_that_it_writes_today() -> None:
    meter = Meter(local.RULES)
    text = Metrics().text(ready=True, restarts=0, cap=4, queue=9, kv_capacity=100)
    reading = meter.read(parse(text, meter.wanted), 0.0)
    assert (reading.absent, reading.renamed) == ((), ())
    assert reading.signals.max_running == 4.0


def test_a_run_adds_up() -> None:
    _, busy, after = readings(local, *(f"local-0.1.0-{when}.prom" for when in ("fresh", "busy", "after")))
    s = busy.signals
    assert (s.running, s.waiting, s.max_running, s.kv_capacity) == (4.0, 4.0, 4.0, 78464.0)
    s = after.signals
    assert (s.prompt_tokens, s.cached_tokens, s.output_tokens) == (1320.0, 896.0, 400.0)
    assert (s.finished, s.aborted, s.rejected) == (10.0, 0.0, 0.0)
    assert s.first_token is not None
    assert s.first_token.count == 10


def test_what_it_shows() -> None:
    pages = {
        "/v1/models": {"data": [{"id": "m", "owned_by": "wastegate", "max_model_len": 8192}]},
        "/admin/limits": {"cap": 4, "queue": 256, "running": 0, "waiting": 0},
    }
    found = local.effective(shown(local, "local-0.1.0-after.prom", **pages))
    assert found == Effective(context=8192, sequences=4, queued=256, kv_tokens=78464, speculation=OFF)
