"""A running gateway's replicas as its operator sees them: asked over HTTP, shown as a table. It decides nothing."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from wastegate.engines.devices import Load
from wastegate.engines.readback import Seen
from wastegate.engines.signals import Spread

TIMEOUT = 5.0
UNKNOWN = "–"


class Host(Struct, frozen=True):
    """What a process that the gateway has started takes of its machine."""

    cpu_seconds: float
    rss_bytes: int


class Replica(Struct, frozen=True):
    """One row of the gateway's state; what this page does not show is left out."""

    name: str
    url: str
    state: str
    in_flight: int
    drained: bool = False
    models: tuple[str, ...] = ()
    seen: Seen = Seen()
    accelerators: Load | None = None
    alarms: tuple[str, ...] = ()
    host: Host | None = None


class State(Struct, frozen=True):
    replicas: tuple[Replica, ...]
    in_flight: int = 0
    waiting: int = 0


class GatewayError(ValueError):
    """The gateway's operator listener gave no answer; the text says why and what to do."""


def fetch(admin: str, token: str = "") -> State:
    """``admin``: the operator's address, such as ``http://127.0.0.1:8081``. Raises GatewayError."""
    request = urllib.request.Request(f"{admin.rstrip('/')}/admin/state")
    if token:  # for this address alone, wherever it sends us on to
        request.add_unredirected_header("authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return msgspec.json.decode(answer.read(), type=State)
    except urllib.error.HTTPError as error:
        hint = ": its admin token is needed (--config names the file that has it)" if error.code == 401 else ""
        raise GatewayError(f"{admin} answers with status {error.code}{hint}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise GatewayError(f"no gateway answers on {admin} ({reason}): is `wastegate up` running?") from None


def view(state: State) -> RenderableType:
    """A row a replica, and below it all that is wrong or not known."""
    table = Table(
        title=f"{state.in_flight} calls in the gateway, {state.waiting} of them in line", title_justify="left"
    )
    table.add_column("replica")
    for column in ("engine", "state"):
        table.add_column(column)
    for column in ("batch", "queue", "KV", "cached", "out/s", "TTFT p50 / p95", "ITL p50", "accepted", "thrown out"):
        table.add_column(column, justify="right")
    notes: list[Text] = []
    for replica in state.replicas:
        table.add_row(*map(escape, _cells(replica)))
        notes += [Text(f"{replica.name}: {sentence}", style="yellow") for sentence in _notes(replica)]
    measured = [
        _table(
            ("measured by", *_DEVICES), [(r.name, *_devices(r.accelerators)) for r in state.replicas if r.accelerators]
        ),
        _table(_HOST, [(r.name, *_host(r.host)) for r in state.replicas if r.host]),
    ]
    return Group(table, *(part for part in measured if part.row_count), *notes)


_DEVICES = ("devices", "busy", "tensor", "DRAM", "memory", "power", "energy")
_HOST = ("CPU time", "RSS")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table("replica")
    for column in columns:
        table.add_column(column, justify="left" if column == "measured by" else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _devices(load: Load) -> list[str]:
    return [
        load.source, str(load.devices or UNKNOWN), _percent(load.busy), _percent(load.tensor), _percent(load.dram),
        _gib(load.memory_used), _unit(load.power, 1.0, "W"), _unit(load.joules, 3.6e6, "kWh"),
    ]  # fmt: skip


def _host(host: Host) -> list[str]:
    return [_unit(host.cpu_seconds, 1.0, "s"), _gib(host.rss_bytes)]


def _gib(value: float | None) -> str:
    return _unit(value, float(1 << 30), "GiB")


def _unit(value: float | None, one: float, unit: str) -> str:
    return UNKNOWN if value is None else f"{value / one:.3g} {unit}"


def _cells(replica: Replica) -> list[str]:
    seen, s = replica.seen, replica.seen.signals
    version = (seen.effective and seen.effective.version) or ""
    state = f"{replica.state} (drained)" if replica.drained else replica.state
    head = [replica.name, f"{seen.engine} {version}".strip() or UNKNOWN, state]
    if s is None:
        return head + [UNKNOWN] * 9
    cap = s.max_running or (seen.effective and seen.effective.sequences)
    batch = _number(s.running) + (f"/{cap:.0f}" if cap else "")
    accepted = _share(s.accepted_tokens, s.draft_tokens) if s.acceptance is None else _percent(s.acceptance)
    return [
        *head, batch, _number(s.waiting), _percent(s.kv_usage), _share(s.cached_tokens, s.prompt_tokens),
        _number(s.output_rate), f"{_spread(s.first_token, 'p50')} / {_spread(s.first_token, 'p95')}",
        _spread(s.inter_token, "p50"), accepted, _number(s.preemptions),
    ]  # fmt: skip


def _notes(replica: Replica) -> list[str]:
    seen = replica.seen
    error = [seen.error] if seen.error else []
    alarms = [f"alarm: {alarm}" for alarm in replica.alarms]
    return [*error, *alarms, *seen.warnings, *seen.renamed, *seen.absent]


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}" if value == round(value) or value >= 10 else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def _share(part: float | None, all_of_it: float | None) -> str:
    return _percent(part / all_of_it) if part is not None and all_of_it else UNKNOWN


def _spread(spread: Spread | None, quantile: str) -> str:
    value: float | None = getattr(spread, quantile, None)
    return UNKNOWN if value is None else f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"
