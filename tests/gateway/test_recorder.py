"""Every call is written down, whatever the disk and the database do; and where it cannot be, that is said."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.fake_replica import FakeReplica, Fault, Reply
from tests.gateway.running import LIMIT, Running, chat, running
from wastegate.core.ledger import Admission, Attempt, Entry, ReplicaSpan
from wastegate.gateway import recorder as room
from wastegate.gateway.recorder import Config, Recorder
from wastegate.store import entries as store
from wastegate.store.entries import Ledger
from wastegate.store.journal import Journal, JournalError
from wastegate.store.schema import LedgerError
from wastegate.store.segments import write_all


def entry(number: int) -> Entry:
    attempt = Attempt(1, "r1", 100.0, 101.0, "finished", sent=100.0, status=200, prompt_tokens=5, output_tokens=7)
    return Entry(
        f"c-{number}", 100.0, 101.0, "chat", "/v1/chat/completions", "m", "t", "short", False, "finished", 200,
        attempts=(attempt,),
    )  # fmt: skip


def admission(number: int) -> Admission:
    return Admission(
        f"c-{number}", 100.0, "chat", "/v1/chat/completions", "m", "t", False, 5, number=1, replica="r1", claimed=100.0
    )


class Time:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Put "full" into it, and the journal's disk takes no more: as the kernel says it, at the write itself."""
    trouble: set[str] = set()

    def write(file: int, data: bytes, sync: bool) -> None:
        if "full" in trouble:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(file, data, sync)

    monkeypatch.setattr("wastegate.store.journal.write_all", write)
    yield trouble
    trouble.clear()


Open = Callable[..., Recorder]


@pytest.fixture
def opened(tmp_path: Path, clock: Time) -> Iterator[Open]:
    """Opens recorders that all share one folder, and closes them at the end."""
    live: list[Recorder] = []

    def make(worker: str = "gateway", config: Config = Config(), ledger: Path | None = None) -> Recorder:  # noqa: B008
        one = Recorder(tmp_path / "journal", ledger or tmp_path / "ledger.db", worker, config, clock.now)
        live.append(one)
        return one

    yield make
    for one in live:
        if one._thread.is_alive():
            one.close()


def stored(tmp_path: Path) -> list[str]:
    with Ledger(tmp_path / "ledger.db", create=False) as ledger:
        return sorted(id for (id,) in ledger._db.execute("SELECT id FROM entry_text"))


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.005)


# ---- the usual way


def test_what_ends_is_in_the_ledger_soon_and_the_journal_is_empty_at_the_end(tmp_path: Path, opened: Open) -> None:
    recorder = opened()
    for number in range(3):
        recorder.admit(admission(number))
        recorder.end((entry(number),))
    until(lambda: len(stored(tmp_path)) == 3, "three calls in the ledger")
    recorder.end((entry(3),))
    recorder.close()
    assert stored(tmp_path) == ["c-0", "c-1", "c-2", "c-3"]
    assert list((tmp_path / "journal").iterdir()) == []
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert ledger.entry("c-2") == entry(2)


def test_spans_follow_one_another(tmp_path: Path, opened: Open) -> None:
    recorder = opened()
    loading = ReplicaSpan("r1", "loading", 1.0, None, 5)
    recorder.save_spans([loading])
    recorder.save_spans([replace(loading, end=2.0), ReplicaSpan("r1", "serving", 2.0, None, 5)])
    recorder.close()
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert [(span.phase, span.end) for span in ledger.spans()] == [("loading", 2.0), ("serving", None)]


def test_what_an_earlier_process_left_is_taken_over(tmp_path: Path, opened: Open) -> None:
    """It died: what had ended is there, what was in flight is lost, at the last time that anything was written."""
    journal = Journal(tmp_path / "journal", "gateway")
    journal.admit(admission(1))
    journal.end(entry(1))
    journal.admit(admission(2))
    journal.beat(140.0)
    journal.close()
    opened().close()
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert ledger.entry("c-1") == entry(1)
        lost = ledger.entry("c-2")
    assert (lost.outcome, lost.ended, lost.attempts[0].replica) == ("lost", 140.0, "r1")


def test_a_living_neighbour_is_left_alone(tmp_path: Path, opened: Open) -> None:
    one = opened("one")
    one.admit(admission(1))
    other = opened("two")
    assert stored(tmp_path) == []
    one.end((entry(1),))
    one.close()
    other.close()
    assert stored(tmp_path) == ["c-1"]


def test_a_full_segment_goes_once_its_calls_are_in_the_ledger(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Journal, "full", property(lambda self: self._size - self._copied > 2000))
    recorder = opened()
    for number in range(40):
        recorder.admit(admission(number))
        recorder.end((entry(number),))
    until(lambda: len(stored(tmp_path)) == 40, "forty calls in the ledger")
    until(lambda: len(list((tmp_path / "journal").iterdir())) == 1, "only the open segment is left")
    recorder.close()
    assert len(stored(tmp_path)) == 40


def test_lines_that_make_no_sense_are_kept_and_said(
    tmp_path: Path, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path / "journal", "gateway")
    journal.end(entry(1))
    journal.close()
    with journal.path.open("ab") as file:
        file.write(b"E{not an entry}\n")
    opened().close()
    assert stored(tmp_path) == ["c-1"]
    assert "1 lines of the journal" in caplog.text
    assert [path.suffix for path in (tmp_path / "journal").iterdir()] == [".damaged"]


# ---- the disk takes no more


def test_a_full_disk_turns_new_calls_away_and_says_why(
    opened: Open, disk: set[str], clock: Time, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = opened()
    recorder.admit(admission(1))
    disk.add("full")
    recorder.end((entry(1),))
    assert recorder.refusing
    assert "No space left on device" in recorder.failing
    assert str(tmp_path / "journal") in recorder.failing
    assert recorder.unrecorded == 1
    for _ in range(3):
        recorder.beat()
    assert caplog.text.count("cannot be written") == 1, "once a failure, not once a line"


def test_once_there_is_room_again_calls_are_taken(
    opened: Open, disk: set[str], clock: Time, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = opened()
    disk.add("full")
    recorder.admit(admission(1))
    assert recorder.refusing
    clock.at += 2
    assert recorder.refusing, "it was tried again, and the disk is still full"
    disk.clear()
    assert recorder.refusing, "it is not tried at every call"
    clock.at += 2
    assert not recorder.refusing
    assert recorder.failing == ""
    assert "can be written again" in caplog.text
    recorder.end((entry(1),))
    recorder.close()
    assert (stored(tmp_path), recorder.unrecorded) == (["c-1"], 0)


def test_who_would_rather_serve_is_told_how_many_were_not_written_down(
    opened: Open, disk: set[str], tmp_path: Path
) -> None:
    recorder = opened(config=Config(when_full="serve"))
    disk.add("full")
    for number in range(3):
        assert not recorder.refusing
        recorder.admit(admission(number))
        recorder.end((entry(number),))
    assert recorder.unrecorded == 3
    disk.clear()
    recorder.end((entry(4),))
    recorder.close()
    assert stored(tmp_path) == ["c-4"]
    recorder.set_rules(Config())
    assert recorder._config.when_full == "refuse"


def test_a_segment_that_cannot_be_rotated_stays_in_use(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = opened()
    monkeypatch.setattr(Journal, "full", True)

    def refused(*_: object) -> None:
        raise JournalError("no more files")

    with monkeypatch.context() as during:
        during.setattr(Journal, "rotate", refused)
        recorder.end((entry(1),))
    assert recorder.failing == "no more files"
    recorder.end((entry(2),))
    assert recorder.failing == ""
    recorder.close()
    assert stored(tmp_path) == ["c-1", "c-2"]


# ---- the database takes no more


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite gives up on a locked file after so short a time."""
    monkeypatch.setattr(store, "BUSY_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
def test_a_locked_database_loses_nothing(tmp_path: Path, opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    recorder = opened()
    blocker = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    for number in range(5):
        recorder.end((entry(number),))
    until(lambda: "the ledger cannot be written" in caplog.text, "the lock was met")
    assert recorder.failing == "", "the journal can be written: calls go on"
    blocker.execute("ROLLBACK")
    until(lambda: len(stored(tmp_path)) == 5, "five calls in the ledger")
    blocker.close()


@pytest.mark.usefixtures("impatient")
def test_what_memory_has_no_room_for_is_read_from_the_journal(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(room, "_BACKLOG", 2)
    recorder = opened()
    blocker = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    for number in range(9):
        recorder.end((entry(number),))
    monkeypatch.setattr(Journal, "full", True)
    recorder.end((entry(9),))
    monkeypatch.setattr(Journal, "full", False)
    until(lambda: "the ledger cannot be written" in caplog.text, "the lock was met")
    blocker.execute("ROLLBACK")
    until(lambda: len(stored(tmp_path)) == 10, "ten calls in the ledger, without a restart")
    blocker.close()
    until(lambda: len(list((tmp_path / "journal").iterdir())) == 1, "the closed segment is gone")


@pytest.mark.usefixtures("impatient")
def test_a_database_that_stays_locked_leaves_all_to_the_next_start(
    tmp_path: Path, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = opened()
    blocker = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    recorder.end((entry(1),))
    recorder.close()
    assert "keeps the calls for the next start" in caplog.text
    blocker.execute("ROLLBACK")
    blocker.close()
    opened("again").close()
    assert stored(tmp_path) == ["c-1"]


def test_nothing_ends_the_thread_that_feeds_the_ledger(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = opened()

    def broken(*_: object) -> int:
        raise OverflowError("a number that no column can hold")

    with monkeypatch.context() as during:
        during.setattr(Ledger, "add", broken)
        recorder.end((entry(1),))
        until(lambda: "a number that no column can hold" in caplog.text, "the fault was met")
    until(lambda: stored(tmp_path) == ["c-1"], "the call is in the ledger")


def test_a_ledger_that_cannot_be_opened_is_an_error_at_the_start(tmp_path: Path, opened: Open) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(LedgerError, match=r"broken\.db"):
        opened(ledger=tmp_path / "broken.db")


def test_a_ledger_that_cannot_be_opened_later_is_tried_again(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copy_on, faults = Recorder._copy_on, [LedgerError("locked on purpose")]

    def fails_once(recorder: Recorder) -> None:
        if faults:
            raise faults.pop()
        copy_on(recorder)

    monkeypatch.setattr("wastegate.gateway.recorder._RETRY_SECONDS", 0.01)
    monkeypatch.setattr(Recorder, "_copy_on", fails_once)
    recorder = opened()
    recorder.end((entry(1),))
    until(lambda: stored(tmp_path) == ["c-1"], "the call is in the ledger")
    assert "cannot be opened" in caplog.text


# ---- through the gateway


async def full_disk(gateway: Running, disk: set[str]) -> None:
    disk.add("full")
    assert (await gateway.post(chat())).status == 200  # the call that finds it out
    await gateway.closed(1)


async def test_the_gateway_refuses_with_the_reason_and_recovers(
    tmp_path: Path, disk: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_RETRY_SECONDS", 0.05)
    async with FakeReplica() as replica, running(tmp_path, replica) as gateway:
        await full_disk(gateway, disk)
        answer = await gateway.post(chat())
        assert (answer.status, answer.header("retry-after")) == (503, "5")
        assert "No space left on device" in answer.error
        assert "free the disk" in answer.error
        assert gateway.hub.tally.rejected["ledger"] == 1
        assert len(replica.calls) == 1
        _, state = await gateway.admin("/admin/state")
        assert b"No space left" in state
        disk.clear()
        await gateway.until(lambda: not gateway.hub.recorder.refusing, "the journal can be written again")
        assert (await gateway.post(chat())).status == 200
        await gateway.closed(2)
        assert gateway.hub.recorder.unrecorded == 1


async def test_the_gateway_may_serve_and_count(tmp_path: Path, disk: set[str]) -> None:
    async with (
        FakeReplica() as replica,
        running(tmp_path, replica, ledger=Config(when_full="serve")) as gateway,
    ):
        await full_disk(gateway, disk)
        assert [(await gateway.post(chat())).status for _ in range(3)] == [200] * 3
        await gateway.closed(4)
        _, metrics = await gateway.admin("/metrics")
        assert b"wastegate_unrecorded_calls_total 4" in metrics
        disk.clear()


async def test_a_stream_whose_end_cannot_be_written_down_still_ends(tmp_path: Path, disk: set[str]) -> None:
    hang = Reply(fault=Fault("before_first_byte"))
    async with FakeReplica(script=[hang]) as replica, running(tmp_path, replica) as gateway:
        async with await gateway.connect() as wire:
            wire.post(chat())
            await replica.wait_calls(1)
            disk.add("full")
            replica.release()
            assert (await wire.answer()).complete
        disk.clear()
        await gateway.closed(1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """64 KB of disk, really."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk that is really full")
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)


async def test_a_disk_that_is_really_full(tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_RETRY_SECONDS", 0.05)
    config = Config(journal=str(small_disk / "journal"))
    async with FakeReplica() as replica, running(tmp_path, replica, ledger=config) as gateway:
        statuses: list[int] = []
        while 503 not in statuses:
            statuses.append((await gateway.post(chat(), headers={"x-wastegate-tag-a": "x" * 64})).status)
            assert len(statuses) < 500
        assert set(statuses) == {200, 503}
        served = len(statuses) - 1
        assert served > 20
        await gateway.closed(served)
        assert gateway.hub.recorder.unrecorded <= 1
        enlarge(small_disk)
        await gateway.until(lambda: not gateway.hub.recorder.refusing, "there is room again")
        assert (await gateway.post(chat())).status == 200
        await gateway.closed(served + 1)


@pytest.mark.parametrize(
    ("members", "says"), [({"when_full": "panic"}, 'it is "refuse" or "serve"'), ({"segment_mb": 0}, "at least 1")]
)
def test_a_configuration_that_makes_no_sense(members: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Config(**members)  # type: ignore[arg-type]
