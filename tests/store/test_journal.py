"""The journal loses no call that ended and counts none twice, wherever it is cut off and whatever the disk does."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ledgers import admission, attempt, entry, whole_entries
from wastegate.core.ledger import Entry
from wastegate.store.entries import Ledger
from wastegate.store.journal import BATCH, Journal, JournalError, replay


class Store:
    """What ``Ledger.add`` promises, in memory: an id counts once."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.batches: list[int] = []

    def add(self, entries: Sequence[Entry]) -> int:
        new = [one for one in entries if one.id not in self.entries]
        self.entries.update({one.id: one for one in new})
        self.batches.append(len(entries))
        return len(new)


def replayed(directory: Path) -> dict[str, Entry]:
    store = Store()
    replay(directory, store.add)
    return store.entries


def one_call(journal: Journal, id: str) -> Entry:
    """A whole call through the journal."""
    done = entry(id, attempt(begin=1.0, end=2.0))
    journal.admit(admission(id, at=1.0))
    journal.admit(admission(id, 1, at=1.0))
    journal.end(done)
    return done


def test_what_ended_is_replayed_as_it_was_and_the_segment_goes(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w")
    done = [one_call(journal, "x"), one_call(journal, "y")]
    assert replayed(tmp_path) == {}, "its owner lives"
    journal.close()
    store = Store()
    assert replay(tmp_path, store.add) == 2
    assert list(store.entries.values()) == done
    assert list(tmp_path.iterdir()) == []
    assert replay(tmp_path, store.add) == 0


def test_every_field_comes_back(tmp_path: Path) -> None:
    @settings(max_examples=50)
    @given(whole_entries("x"))
    def holds(one: Entry) -> None:
        journal = Journal(tmp_path, "w")
        journal.end(one)
        journal.close()
        assert replayed(tmp_path) == {"x": one}

    holds()


def test_what_was_in_flight_is_lost_on_the_replica_where_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w")
    journal.admit(admission("waits", at=1.0, tags=(("team", "x"),), client_id="mine", traceparent="00-1-2-01"))
    journal.admit(admission("sent", at=2.0))
    journal.admit(admission("sent", 1, at=2.5, replica="b"))
    one_call(journal, "done")
    journal.beat(7.0)
    journal.close()
    found = replayed(tmp_path)
    assert {name: one.outcome for name, one in found.items()} == {
        "done": "finished",
        "waits": "lost",
        "sent": "lost",
    }
    waits, sent = found["waits"], found["sent"]
    assert (waits.arrived, waits.ended, waits.attempts, waits.tags) == (1.0, 7.0, (), (("team", "x"),))
    assert (waits.client_id, waits.traceparent) == ("mine", "00-1-2-01"), "its client can still be asked"
    (tried,) = sent.attempts
    assert (tried.replica, tried.claimed, tried.sent, tried.ended, tried.outcome) == ("b", 2.5, 2.5, 7.0, "lost")
    assert (tried.prompt_tokens, tried.output_tokens, tried.usage) == (40, None, "estimated")
    assert sent.status == 0
    assert "died" in sent.reason


def test_a_lost_call_keeps_the_attempts_before_its_last(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w")
    journal.admit(admission("x", 1, at=1.0, replica="a"))
    journal.admit(admission("x", 2, at=4.0, replica="b"))
    journal.admit(admission("x", 2, at=4.0, replica="b"))  # said twice, as a new segment's head does
    journal.close()
    first, second = replayed(tmp_path)["x"].attempts
    assert (first.number, first.replica, first.ended, first.outcome) == (1, "a", 4.0, "failed")
    assert (second.number, second.replica, second.ended, second.outcome) == (2, "b", 4.0, "lost")


def test_a_rotated_journal_hands_calls_in_flight_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w", segment_bytes=1)
    done = one_call(journal, "done")
    journal.admit(admission("long", at=3.0))
    journal.admit(admission("long", 1, at=3.0))
    assert journal.full
    closed = journal.rotate()
    assert closed is not None
    assert not journal.full, "what was only copied does not fill a segment"
    assert replayed(tmp_path) == {"done": done}, "the call in flight is not lost: it goes on in the next segment"
    assert not closed.exists()
    journal.close()
    assert replayed(tmp_path)["long"].attempts[0].outcome == "lost"


def test_a_call_may_end_in_a_later_segment(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w")
    journal.admit(admission("long", at=1.0))
    journal.rotate()
    journal.rotate()
    done = entry("long", attempt(end=9.0))
    journal.end(done)
    journal.close()
    assert replayed(tmp_path) == {"long": done}


def test_with_nothing_new_there_is_nothing_to_rotate(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w")
    assert journal.rotate() is None
    journal.admit(admission("x"))
    assert journal.rotate() is not None
    assert journal.rotate() is None
    journal.close()


def test_a_kill_in_the_midst_of_rotating_counts_nothing_twice(tmp_path: Path) -> None:
    """The new segment is there with its head, the old one has no ``C`` yet."""
    journal = Journal(tmp_path, "w")
    journal.admit(admission("x", 1, at=1.0))
    head = journal.path.read_bytes()
    journal.close()
    (tmp_path / "w-000000002.jsonl").write_bytes(head)
    store = Store()
    assert replay(tmp_path, store.add) == 1
    assert list(store.entries) == ["x"]


def test_an_end_in_the_next_segment_counts_though_the_power_went_before_the_c(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w")
    journal.admit(admission("x", 1, at=1.0))
    journal.rotate()
    done = entry("x", attempt(end=2.0))
    journal.end(done)
    journal.close()
    old = tmp_path / "w-000000001.jsonl"
    old.write_bytes(old.read_bytes().removesuffix(b"C\n"))
    assert replayed(tmp_path) == {"x": done}


def test_workers_share_a_directory(tmp_path: Path) -> None:
    living, dying = Journal(tmp_path, "w0"), Journal(tmp_path, "w1")
    living.admit(admission("lives"))
    dying.admit(admission("dies"))
    dying.close()
    assert list(replayed(tmp_path)) == ["dies"]
    living.close()


def test_a_worker_goes_on_beside_its_own_dead_segments(tmp_path: Path) -> None:
    first = Journal(tmp_path, "w")
    one_call(first, "before")
    first.close()
    second = Journal(tmp_path, "w")
    assert list(replayed(tmp_path)) == ["before"]
    one_call(second, "after")
    second.close()
    assert list(replayed(tmp_path)) == ["after"]


def test_large_segments_come_in_batches(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w")
    for number in range(BATCH + 5):
        journal.end(entry(f"{number}"))
    journal.admit(admission("lost"))
    journal.close()
    store = Store()
    assert replay(tmp_path, store.add) == BATCH + 6
    assert store.batches == [BATCH, 6]


def test_two_may_replay_at_once(tmp_path: Path) -> None:
    for worker in range(6):
        journal = Journal(tmp_path, f"w{worker}")
        for number in range(20):
            one_call(journal, f"{worker}-{number}")
        journal.close()
    ledgers = [Ledger(tmp_path / "ledger.db") for _ in range(2)]
    counts: list[int] = []
    threads = [threading.Thread(target=lambda one=one: counts.append(replay(tmp_path, one.add))) for one in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(counts) == ledgers[0].count() == 120
    assert not list(tmp_path.glob("*.jsonl"))
    for one in ledgers:
        one.close()


def test_a_store_that_fails_leaves_the_segments_where_they_are(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w")
    one_call(journal, "x")
    journal.close()

    def refuse(entries: Sequence[Entry]) -> int:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        replay(tmp_path, refuse)
    assert list(replayed(tmp_path)) == ["x"]


# ---- cut off, damaged


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Three calls one after another and interleaved, as bytes."""
    folder = tmp_path_factory.mktemp("recorded")
    journal = Journal(folder, "w")
    one_call(journal, "x")
    journal.admit(admission("y", 1, at=3.0))
    one_call(journal, "z")
    journal.end(entry("y", attempt(end=4.0)))
    journal.close()
    return (folder / "w-000000001.jsonl").read_bytes()


def test_cut_at_any_byte_every_call_is_there_once(recorded: bytes, tmp_path: Path) -> None:
    path = tmp_path / "w-000000001.jsonl"
    for length in range(len(recorded) + 1):
        kept = recorded[:length]
        path.write_bytes(kept)
        store = Store()
        replay(tmp_path, store.add, no_damage)
        assert sum(store.batches) == len(store.entries), "none twice"
        for name in "xyz":
            finished = any(line.startswith(b'E{"id":"%s"' % name.encode()) for line in kept.split(b"\n")[:-1])
            admitted = any(line.startswith(b'A{"id":"%s"' % name.encode()) for line in kept.split(b"\n")[:-1])
            outcome = store.entries[name].outcome if name in store.entries else None
            if finished:
                assert outcome == "finished"
            elif admitted:
                assert outcome in ("lost", "finished")  # whole but for its line's end
            else:
                assert outcome in (None, "lost")


def no_damage(path: Path, lines: int) -> None:
    raise AssertionError(f"{path}: a line cut off at the end is no damage")


@given(st.data())
def test_damage_within_costs_only_the_damaged_line(recorded: bytes, data: st.DataObject) -> None:
    lines = recorded.splitlines(keepends=True)
    broken = data.draw(st.integers(0, len(lines) - 1))
    rubbish = data.draw(st.binary(min_size=1, max_size=30).filter(lambda b: b"\n" not in b and b[:1] not in b"EATC"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w-000000001.jsonl"
        path.write_bytes(b"".join((*lines[:broken], rubbish + b"\n", *lines[broken:])))
        told: list[tuple[str, int]] = []
        store = Store()
        replay(Path(folder), store.add, lambda where, count: told.append((where.name, count)))
        assert {one.outcome for one in store.entries.values()} == {"finished"}
        assert len(store.entries) == 3
        assert told == [("w-000000001.jsonl", 1)]
        assert [kept.name for kept in Path(folder).iterdir()] == ["w-000000001.jsonl.damaged"]


def test_damage_that_nobody_asked_to_hear_of_is_still_set_aside(tmp_path: Path) -> None:
    (tmp_path / "w-000000001.jsonl").write_bytes(b"E{not json}\n")
    assert replayed(tmp_path) == {}
    assert [kept.name for kept in tmp_path.iterdir()] == ["w-000000001.jsonl.damaged"]


# ---- the disk


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file may grow beyond ``size``: the system writes a part of a line and refuses the rest, as if full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_is_one_clear_error_and_leaves_no_half_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w")
    done = one_call(journal, "x")
    whole = journal.path.read_bytes()
    with file_limit(len(whole) + 20):
        for _ in range(2):
            with pytest.raises(JournalError, match=r"cannot write to the journal .*w-000000001\.jsonl: .+"):
                journal.admit(admission("refused"))
            assert journal.path.read_bytes() == whole
        with pytest.raises(JournalError):
            journal.end(entry("y", attempt()))
    again = one_call(journal, "z")
    journal.close()
    assert replayed(tmp_path) == {"x": done, "z": again}, "what was refused was never admitted"


def test_where_a_half_line_cannot_be_taken_away_the_next_keeps_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path, "w")
    done = one_call(journal, "x")
    size = journal.path.stat().st_size

    def refuse(file: int, length: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "ftruncate", refuse)
    with file_limit(size + 20), pytest.raises(JournalError):
        journal.admit(admission("refused"))
    monkeypatch.undo()
    assert journal.path.stat().st_size == size + 20
    again = one_call(journal, "y")
    journal.close()
    assert replayed(tmp_path) == {"x": done, "y": again}


def test_a_rotation_that_fails_leaves_the_old_segment_in_use(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w")
    journal.admit(admission("x", 1, at=1.0))
    size = journal.path.stat().st_size
    with file_limit(size // 2), pytest.raises(JournalError, match="cannot begin"):
        journal.rotate()
    assert [path.name for path in tmp_path.iterdir()] == ["w-000000001.jsonl"]
    assert journal.path.stat().st_size == size
    done = entry("x", attempt())
    journal.end(done)
    assert journal.rotate() is not None
    journal.close()
    assert replayed(tmp_path) == {"x": done}


def test_no_new_segment_no_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, "w")
    one_call(journal, "x")

    def refuse(*_: object) -> tuple[Path, int]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("wastegate.store.journal.create", refuse)
    with pytest.raises(JournalError, match=r"cannot open a new segment in .*: Permission denied"):
        journal.rotate()
    one_call(journal, "y")
    journal.close()
    assert list(replayed(tmp_path)) == ["x", "y"]


def test_a_directory_that_cannot_be_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot open a journal in"):
        Journal(tmp_path / "file", "w")


def test_a_closed_journal_refuses(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w")
    journal.close()
    journal.close()
    with pytest.raises(JournalError):
        journal.end(entry())


@pytest.mark.parametrize("worker", ["", "a/b", "a-b", "ä"])
def test_a_worker_that_cannot_name_a_file_is_refused(tmp_path: Path, worker: str) -> None:
    with pytest.raises(ValueError, match="worker"):
        Journal(tmp_path, worker)


def test_sync_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(os, "fdatasync", waited.append)
    for sync in (False, True):
        journal = Journal(tmp_path, "w", sync=sync)
        journal.admit(admission("x"))
        journal.close()
        assert len(waited) == int(sync)


# ---- kill -9

WRITER = """
import sys
from pathlib import Path
from tests.ledgers import admission, attempt, entry
from wastegate.store.journal import Journal
journal = Journal(Path(sys.argv[1]), "w", segment_bytes=4000)
for number in range(10**9):
    name = f"{sys.argv[2]}-{number}"
    journal.admit(admission(name, 1, at=float(number)))
    journal.end(entry(name, attempt(begin=float(number), end=number + 1.0)))
    print(name, flush=True)
    if journal.full:
        journal.rotate()
"""


def test_killed_at_any_moment_no_finished_call_is_lost_and_none_counts_twice(tmp_path: Path) -> None:
    """A call counts as finished once its writer has said so, as a gateway does with the last byte."""
    root = Path(__file__).parents[2]
    with Ledger(tmp_path / "ledger.db") as ledger:
        told: set[str] = set()
        for life in range(8):
            command = [sys.executable, "-c", WRITER, str(tmp_path / "journal"), str(life)]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
            assert child.stdout is not None
            with child.stdout:
                for line in child.stdout:
                    told.add(line.strip())
                    if len(told) >= 60 * (life + 1) + 7 * life:
                        child.kill()
                        break
                told.update(line.strip() for line in child.stdout)
            child.wait(10)
            replay(tmp_path / "journal", ledger.add)
        finished = {name for name in told if ledger.entry(name).outcome == "finished"}
        assert finished == told
        assert len(told) > 400
        assert ledger.count() - len(told) <= 2 * 8, "at most the one in flight, and one ended but not yet told, a life"
        assert not list((tmp_path / "journal").iterdir())
