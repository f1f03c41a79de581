from __future__ import annotations

import tomllib

from rich.console import Console

from tests.steps.test_whatif import FLEET
from wastegate.steps.whatif import Report, Where, judge, run
from wastegate.steps.whatif_view import html, many, view

MADE = FLEET + "\n[traffic]\nrate = 5.0\noutput = 20.0\n"


def report(label: str = "") -> Report:
    return run(Where("what.toml", tomllib.loads(MADE), calls=60, label=label))


def shown(part: object) -> str:
    console = Console(width=100, record=True, file=None, quiet=True)
    with console.capture() as capture:
        Console(width=100, file=console.file)
        console.quiet = False
        console.print(part)
    return capture.get()


def test_one_run_shows_latency_cost_machines_and_doubt() -> None:
    one = report()
    text = shown(view(one, judge(one)))
    for part in ("60 finished", "TTFT", "P99", "replica-2", "for 1,000 calls", "±50%", "outside"):
        assert part in text


def test_many_runs_are_a_row_each_and_fit_a_terminal() -> None:
    runs = [report("count=1, a=2"), report("count=2, a=2")]
    text = shown(many(runs, [judge(one) for one in runs]))
    assert "count=1, a=2" in text.replace("\n", "")
    assert max(map(len, text.splitlines())) <= 100


def test_a_page_holds_charts_and_needs_nothing_else() -> None:
    one = report()
    page = html([one], [judge(one)])
    assert page.count("<svg") >= 3
    assert "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "")
    two = [report("count=<1>"), report("count=2")]
    page = html(two, [judge(each) for each in two])
    assert "Cost of 1,000 answered calls" in page
    assert "<1>" not in page


def test_a_run_without_an_answer_is_a_page_too() -> None:
    from msgspec.structs import replace

    from wastegate.sim.tally import Figures

    none = Figures(None, None, None, None, None)
    empty = replace(report(), ttft=none, tpot=none, e2e=none, arrivals=(), mean_ttft=())
    assert "What if" in html([empty], [judge(empty)])
    assert "–" in shown(view(empty, judge(empty)))
