"""The audit adds up, says what it does not know, and is judged by that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.ledgers import HOURLY, PLAIN, attempt, entry, record, span
from tests.ledgers import run as steps
from wastegate import cli
from wastegate.core.ledger import EngineRecord, Entry, ReplicaSpan
from wastegate.core.records import Cursor, Heard
from wastegate.steps.audit import At, Bill, Report, judge, run
from wastegate.steps.figures import Told, Usage
from wastegate.store.entries import Ledger
from wastegate.store.schema import LedgerError

T = 1_790_000_000.0


def audited(
    folder: Path,
    entries: Sequence[Entry],
    life: Sequence[ReplicaSpan] = (),
    start: float = -math.inf,
    end: float = math.inf,
) -> Report:
    with Ledger(folder / "ledger.db") as ledger:
        ledger.add(entries)
        ledger.save_spans(life)
    return run(At(folder / "ledger.db"), start, end)


def usual(folder: Path) -> Report:
    """A day in little: loading, two calls together, one that failed and was tried again, idle time."""
    prompt = {"prompt_tokens": 1000, "output_tokens": 100}
    retried = (attempt("a", T + 30, T + 32, outcome="failed"), attempt("b", T + 32, T + 35, number=2, **prompt))
    entries = [
        entry("x", attempt("a", T + 10, T + 20, first_token=T + 12, **prompt), tenant="acme", tags=(("team", "red"),)),
        entry("y", attempt("a", T + 10, T + 20, **prompt), route="mail"),
        entry("z", *retried, model="large"),
        entry("r"),
    ]
    entries[3] = replace(entries[3], arrived=T + 40, ended=T + 40)
    life = [
        span("a", T, T + 10, phase="loading", work=PLAIN),
        span("a", T + 10, T + 60, work=PLAIN),
        span("b", T, None, seen=T + 60, price=2 * HOURLY, probe_seconds=6.0),
    ]
    return audited(folder, entries, life)


def test_the_bill_is_the_sum_of_its_lines(tmp_path: Path) -> None:
    report = usual(tmp_path)
    bill = report.bill
    # a: 10 loading, 10 shared, 2 failed, 38 idle; b at two dollars: 3 s of a call, of 57 others a tenth probed.
    assert bill == Bill(180.0, 18.0, bill.idle, bill.overhead, 2.0, {"superseded": 2.0}, 0.0)
    assert bill.idle == pytest.approx(38 + 114 * 0.9)
    assert bill.overhead == pytest.approx(10 + 114 * 0.1)
    assert bill.requests + bill.idle + bill.overhead == pytest.approx(bill.total)
    by_replica = {one.name: one for one in report.replicas}
    assert (by_replica["a"].dollars, by_replica["a"].busy_seconds, by_replica["a"].utilisation) == (60.0, 12.0, 0.2)
    assert (by_replica["b"].requests, by_replica["b"].up_seconds) == (6.0, 60.0)
    assert by_replica["a"].work == "a test"


def test_each_split_sums_to_the_requests(tmp_path: Path) -> None:
    report = usual(tmp_path)
    assert [split.by for split in report.splits] == ["route", "model", "tenant", "class", "tag team"]
    for split in report.splits[:4]:
        assert sum(row.dollars for row in split.rows) == pytest.approx(report.bill.requests)
        assert sum(row.calls for row in split.rows) == report.calls == 4
    (red,) = report.splits[4].rows
    assert (red.name, red.calls) == ("red", 1)


def test_what_it_says_beside_the_bill(tmp_path: Path) -> None:
    report = usual(tmp_path)
    assert report.outcomes == {"finished": 3, "refused": 1}
    assert report.per_thousand == pytest.approx(6000.0)
    assert report.per_thousand_loaded == pytest.approx(60_000.0)
    # 10 + 10 + 2 on a, 3 on b at two dollars: the ten seconds together are billed twice.
    assert report.naive.dollars == pytest.approx(28.0)
    assert report.naive.ratio == pytest.approx(28 / 18)
    assert report.naive.memory_known == 0.0
    assert (report.window.start, report.window.end, report.basis) == (T, T + 60, "GATEWAY")
    assert (report.guessed_tokens, report.uncounted) == (0.0, 0.0)
    assert judge(report).ruling == "pass"


def test_a_window_cuts_money_and_counts_calls_that_end_in_it(tmp_path: Path) -> None:
    usual(tmp_path)
    report = run(At(tmp_path / "ledger.db"), T + 15, T + 31)
    assert (report.calls, report.outcomes) == (2, {"finished": 2})
    assert report.bill.total == pytest.approx(16 + 32)
    assert report.bill.requests == pytest.approx(6.0)
    assert report.window == report.window.__class__(T + 15, T + 31)


def test_no_traffic_is_no_cost_a_request_and_all_idle(tmp_path: Path) -> None:
    report = audited(tmp_path, [], [span("a", T, T + 60)])
    assert (report.calls, report.outcomes, report.per_call.cost, report.per_thousand) == (0, {}, None, None)
    assert (report.per_thousand_loaded, report.naive.ratio, report.naive.memory_known) == (None, None, None)
    assert (report.guessed_tokens, report.uncounted, report.latency.e2e) == (None, None, None)
    assert report.bill.idle == report.bill.total == 60.0
    assert judge(report).reasons == ("no call ended in this window",)
    assert b"NaN" not in msgspec.json.encode(report)


def test_an_empty_ledger_says_that_it_knows_nothing(tmp_path: Path) -> None:
    report = audited(tmp_path, [])
    assert (report.window.start, report.window.end, report.bill.total) == (None, None, 0.0)
    assert judge(report).ruling == "hold"
    assert "no replica is known to have been up" in judge(report).reasons[1]


def test_a_window_beside_all_facts_is_empty(tmp_path: Path) -> None:
    usual(tmp_path)
    report = run(At(tmp_path / "ledger.db"), T + 1000, math.inf)
    assert (report.window.start, report.replicas, report.bill.total) == (None, (), 0.0)


def test_what_has_no_price_is_told_and_never_zero(tmp_path: Path) -> None:
    entries = [entry("x", attempt("dear", 0.0, 4.0)), entry("y", attempt("unknown", 0.0, 5.0))]
    report = audited(tmp_path, entries, [span("dear"), span("unknown", price=0)])
    assert report.unpriced.replicas == ("unknown",)
    assert (report.unpriced.attempts, report.unpriced.calls, report.unpriced.seconds) == (1, 1, 5.0)
    unknown = report.replicas[1]
    assert (unknown.unpriced_seconds, unknown.utilisation, unknown.dollars) == (10.0, None, 0.0)
    verdict = judge(report)
    assert verdict.ruling == "hold"
    assert verdict.reasons == ("1 of 2 attempts have no price (on unknown)",)


def test_no_price_at_all_holds(tmp_path: Path) -> None:
    report = audited(tmp_path, [entry("x", attempt("a"))], [span("a", price=0)])
    assert judge(report).reasons == ("no replica was up at a known price: give it price_per_hour or an accelerator",)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return usual(tmp_path_factory.mktemp("sound"))


def test_sums_that_miss_the_bill_fail(sound: Report) -> None:
    off = replace(sound, bill=replace(sound.bill, off_by=0.2))
    assert judge(off).ruling == "fail"
    assert "miss the bill by $0.2" in judge(off).reasons[0]
    assert judge(replace(sound, bill=replace(sound.bill, off_by=0.1))).ruling == "pass", "within 0.1 %"


def test_guesses_hold_the_report(sound: Report) -> None:
    assert judge(replace(sound, guessed_tokens=0.5)).reasons == ("50% of the tokens are estimates",)
    assert judge(replace(sound, uncounted=0.25)).reasons == ("25% of the attempts have no token count",)


def test_guessed_and_uncounted_are_parts(tmp_path: Path) -> None:
    tries = [
        attempt(begin=0.0, end=1.0, prompt_tokens=30, output_tokens=10),
        attempt(begin=2.0, end=3.0, prompt_tokens=10, usage="estimated"),
        attempt(begin=4.0, end=5.0, usage="none"),
        attempt(begin=6.0, end=7.0, usage="counted", output_tokens=10),
    ]
    report = audited(tmp_path, [entry(f"{n}", one) for n, one in enumerate(tries)], [span()])
    assert report.usage == (
        Usage("engine", 1, 40),
        Usage("counted", 1, 10),
        Usage("estimated", 1, 10),
        Usage("none", 1, 0),
    )
    assert report.guessed_tokens == pytest.approx(1 / 6)
    assert report.uncounted == 0.25


def test_no_ledger_and_wrong_windows_raise(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no ledger"):
        run(At(tmp_path / "nope.db"))
    (tmp_path / "bad.db").write_text("not a database " * 100)
    with pytest.raises(LedgerError):
        run(At(tmp_path / "bad.db"))
    usual(tmp_path)
    with pytest.raises(ValueError, match="ends"):
        run(At(tmp_path / "ledger.db"), 5.0, 1.0)


# ---- the command


def test_the_command_prints_the_bill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual(tmp_path)
    assert cli.main(["audit", "--ledger", str(tmp_path / "ledger.db")]) == 0
    said = capsys.readouterr().out
    assert "price × up time" in said
    assert "$180.00" in said


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = usual(tmp_path)
    assert cli.main(["audit", "--ledger", str(tmp_path / "ledger.db"), "--json"]) == 0
    said = msgspec.json.decode(capsys.readouterr().out)
    assert msgspec.convert(said["report"], Report) == report
    assert said["verdict"] == {"ruling": "pass", "reasons": []}


def test_the_command_takes_a_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual(tmp_path)
    arguments = ["--since", "2026-09-21T14:13:35Z", "--until", "2026-09-21T14:13:51Z", "--json"]
    assert cli.main(["audit", "--ledger", str(tmp_path / "ledger.db"), *arguments]) == 0
    window = msgspec.json.decode(capsys.readouterr().out)["report"]["window"]
    assert window == {"start": T + 15, "end": T + 31}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ledger", "{}/nope.db"], "there is no ledger at"),
        (["--ledger", "{}/ledger.db", "--since", "yesterday"], "'yesterday' is no time"),
        (["--ledger", "{}/ledger.db", "--since", "now", "--until", "1h"], "before it starts"),
        (["--config", "{}/nope.toml"], "nope.toml"),
    ],
)
def test_the_command_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    usual(tmp_path)
    assert cli.main(["audit", *(word.format(tmp_path) for word in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("wastegate audit: ")
    assert said in captured.err
    assert captured.out == ""


def test_the_gateways_own_ledger_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual(tmp_path)
    monkeypatch.setenv("WASTEGATE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["audit", "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["report"]["ledger"] == str(tmp_path / "ledger.db")


def test_a_report_that_does_not_add_up_ends_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = usual(tmp_path)
    wrong = replace(wrong, bill=replace(wrong.bill, off_by=9.0))
    monkeypatch.setattr("wastegate.steps.audit.run", lambda *_: wrong)
    assert cli.main(["audit", "--ledger", str(tmp_path / "ledger.db")]) == 1
    assert "these figures are wrong" in capsys.readouterr().out


# ---- what engines tell


def told_audit(folder: Path, *records: EngineRecord) -> Report:
    """A replica whose engine tells of x and y, and one whose engine does not."""
    entries = [
        entry("x", attempt(end=10.0, prompt_tokens=100, cached_tokens=20, output_tokens=50)),
        entry("y", attempt(end=10.0, prompt_tokens=100, cached_tokens=0, output_tokens=50)),
        entry("z", attempt("b", end=10.0, prompt_tokens=100, output_tokens=50), route="batch"),
    ]
    life = [span(work=PLAIN, joules=7.2e6), span("b", work=PLAIN)]
    with Ledger(folder / "told.db") as ledger:
        ledger.add(entries)
        ledger.save_spans(life)
        numbered = tuple(replace(one, sequence=number) for number, one in enumerate(records, 1))
        ledger.save_records([Heard("a", Cursor("boot", len(records), 11.0), numbered)])
    return run(At(folder / "told.db"))


RECORDS = (
    record("x.1", steps(0.0, 10.0, 50, decode=50, prefill=80), prompt=100, cached=32, output=50),
    record("y.1", steps(5.0, 10.0, 25, decode=25), prompt=100, cached=0, output=51),
)


def test_each_replica_has_its_basis_and_the_distance_of_the_gateways_estimate(tmp_path: Path) -> None:
    report = told_audit(tmp_path, *RECORDS)
    a, b = report.replicas
    assert (a.basis, a.attempts, a.recorded, b.basis, b.recorded, b.moved) == ("EXACT", 2, 2, "GATEWAY", 0, None)
    assert report.basis == "GATEWAY"
    assert a.moved is not None
    assert 0.1 < a.moved < 0.5
    assert told_audit(tmp_path / "some", RECORDS[0]).replicas[0].basis == "DEGRADED"
    assert judge(report).ruling == "pass"


def test_tokens_by_both_counts_stand_side_by_side(tmp_path: Path) -> None:
    (counts,) = told_audit(tmp_path, *RECORDS).told
    assert counts == Told("a", 2, prompt=(200, 200), cached=(20, 32), output=(100, 101))
    assert told_audit(tmp_path / "none").told == ()


def test_a_calls_energy_stands_beside_its_dollars(tmp_path: Path) -> None:
    report = told_audit(tmp_path, *RECORDS)
    assert [one.joules for one in report.replicas] == [pytest.approx(7.2e6), None]
    energy = report.per_call.energy
    assert energy is not None
    assert energy.count == 2
    assert energy.mean == pytest.approx(3.6e6)
