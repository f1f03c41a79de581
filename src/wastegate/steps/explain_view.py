"""One call's explanation on a terminal. Layout only: every figure comes from the explanation."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wastegate.core.ledger import Attempt
from wastegate.steps.explain import AttemptCost, Engine, Explanation
from wastegate.steps.words import NOTHING, dollars, instant, joules, seconds


def view(explanation: Explanation) -> Group:
    """Everything to print, in the order in which it happened."""
    parts: list[RenderableType] = [_call(explanation)]
    if explanation.entry.trail:
        parts.append(_lines("Why it went as it did", explanation.entry.trail))
    parts += [_attempt(explanation, cost) for cost in explanation.attempts]
    parts.append(_total(explanation))
    if explanation.guesses:
        parts.append(_lines("What is a guess", explanation.guesses))
    return Group(*parts)


def _call(explanation: Explanation) -> Text:
    call = explanation.entry
    text = Text(f"Call {call.id}\n", style="bold")
    how = f"{call.outcome}, status {call.status or 'unknown'}"
    facts = [
        f"{instant(call.arrived)}, {seconds(call.ended - call.arrived)}, {how}" + _why(call.reason, call.finish_reason),
        f"route {call.route} · model {call.model} · tenant {call.tenant} · {call.length_class}"
        + (" · streamed" if call.stream else "")
        + "".join(f" · {key}={value}" for key, value in call.tags),
    ]
    if call.client_id:
        facts.append(f"the client's own id: {call.client_id}")
    if call.traceparent:
        facts.append(f"traceparent: {call.traceparent}")
    if call.divergence is not None:
        where = f"at byte {call.divergence.at:,} of {call.prompt_bytes:,} ({call.divergence.by})"
        again = f"{call.divergence.again:,} bytes behind that are the same again"
        facts.append(f"its prompt parts from one before it {where}; {again}")
    return text.append("\n".join(facts), style="not bold")


def _why(*reasons: str) -> str:
    return "".join(f" ({reason})" for reason in reasons if reason)


def _lines(title: str, lines: tuple[str, ...]) -> Text:
    text = Text(f"{title}\n", style="bold")
    return text.append("\n".join(f"  {line}" for line in lines), style="not bold")


def _attempt(explanation: Explanation, cost: AttemptCost) -> Group:
    attempt, call = cost.attempt, explanation.entry
    waste = f"; its cost is waste: {cost.waste}" if cost.waste else ""
    title = f"Attempt {attempt.number} on {attempt.replica}: {attempt.outcome}{_why(attempt.reason)}{waste}"
    table = Table(pad_edge=False, show_header=False, box=box.SIMPLE)
    table.add_column()
    table.add_column(justify="right", overflow="fold")
    for name, when in (
        ("slot taken", attempt.claimed),
        ("sent", attempt.sent),
        ("first byte", attempt.first_byte),
        ("first token", attempt.first_token),
        ("ended", attempt.ended),
    ):
        table.add_row(name, NOTHING if when is None else f"+{seconds(when - call.arrived)}")
    table.add_row("time per token after the first", seconds(_per_token(attempt)))
    table.add_section()
    table.add_row("prompt tokens", _tokens(attempt.prompt_tokens))
    table.add_row("of them cached", _tokens(attempt.cached_tokens))
    table.add_row("output tokens", _tokens(attempt.output_tokens))
    table.add_row("counted by", attempt.usage)
    table.add_row("in flight with it, itself counted", NOTHING if cost.company is None else f"{cost.company:.1f}")
    if cost.engine is not None:
        _engine(table, cost.engine)
    table.add_section()
    table.add_row("prefill", dollars(cost.prefill))
    table.add_row("decode", dollars(cost.decode))
    table.add_row("KV held", dollars(cost.kv))
    table.add_row("cost", dollars(cost.dollars), style="bold")
    if cost.estimate is not None:
        table.add_row("as the gateway alone would say", dollars(cost.estimate))
    table.add_row("rate × duration × memory share", dollars(cost.naive))
    if cost.joules is not None:
        table.add_row("energy", joules(cost.joules))
    table.add_row("basis", cost.basis)
    return Group(Text(title, style="bold"), table)


def _engine(table: Table, engine: Engine) -> None:
    """What the engine says, under what the gateway saw."""
    table.add_section()
    table.add_row("by its engine: waited there", seconds(engine.queued))
    table.add_row("prompt tokens, cached, computed", f"{engine.prompt:,}, {engine.cached:,}, {engine.prefill:,}")
    table.add_row("output tokens, of steps", f"{engine.output:,}, {engine.steps:,}")
    if engine.draft:
        table.add_row("draft tokens verified", f"{engine.draft:,}")
    if engine.preemptions:
        table.add_row("preempted", f"{engine.preemptions:,} times")
    table.add_row("KV held, token-seconds", f"{engine.kv:,.0f}")


def _per_token(attempt: Attempt) -> float | None:
    if attempt.first_token is None or attempt.output_tokens is None or attempt.output_tokens < 2:
        return None
    return (attempt.ended - attempt.first_token) / (attempt.output_tokens - 1)


def _tokens(count: int | None) -> str:
    return "not known" if count is None else f"{count:,}"


def _total(explanation: Explanation) -> Text:
    flew = explanation.entry.flew
    if flew is not None and not explanation.attempts:
        spared = f"{_tokens(flew.prompt_tokens)} prompt and {_tokens(flew.output_tokens)} output tokens"
        return Text(f"It flew with {flew.call}, so it cost nothing: {spared} were not computed for it.", style="bold")
    if not explanation.attempts:
        return Text("It never reached a replica, so it cost nothing.", style="bold")
    if explanation.dollars is None:
        return Text("Its cost is not known: no replica that it ran on has a price.", style="bold")
    text = Text(f"It cost {dollars(explanation.dollars)}", style="bold")
    return text.append(f" (rate × duration × memory share: {dollars(explanation.naive)})", style="not bold")
