"""A segment belongs to the process that holds its lock, and to nobody once that process is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wastegate.store import segments
from wastegate.store.segments import Dead, create, dead, write_all


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def taken(directory: Path) -> list[list[str]]:
    return [[segment.path.name for segment in some] for some in dead(directory)]


def make(directory: Path, worker: str, text: bytes = b"") -> Path:
    path, file = create(directory, worker)
    os.write(file, text)
    os.close(file)
    return path


def test_numbers_go_on_from_what_is_there(tmp_path: Path) -> None:
    for worker in ("w", "w", "v.1"):
        make(tmp_path, worker)
    assert names(tmp_path) == ["v.1-000000001.jsonl", "w-000000001.jsonl", "w-000000002.jsonl"]


def test_a_segment_whose_owner_lives_is_left_alone(tmp_path: Path) -> None:
    _, file = create(tmp_path, "w")
    assert taken(tmp_path) == []
    os.close(file)
    assert taken(tmp_path) == [["w-000000001.jsonl"]]


def test_a_killed_process_leaves_its_segment_to_whoever_comes(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from wastegate.store.segments import create\n"
        "create(Path(sys.argv[1]), 'w'); print('ready', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "ready\n"
        assert taken(tmp_path) == []
        child.kill()
        child.wait(10)
    assert taken(tmp_path) == [["w-000000001.jsonl"]]


def test_segments_come_by_worker_and_number_and_stay_locked_meanwhile(tmp_path: Path) -> None:
    for worker in ("w", "v", "w"):
        make(tmp_path, worker)
    seen = []
    for some in dead(tmp_path):
        seen.append([segment.path.name for segment in some])
        others = {name for group in taken(tmp_path) for name in group}
        assert others.isdisjoint(seen[-1]), "two processes may not take the same"
    assert seen == [["v-000000001.jsonl"], ["w-000000001.jsonl", "w-000000002.jsonl"]]


def test_other_files_are_no_segments(tmp_path: Path) -> None:
    for name in ("w.jsonl", "w-1.jsonl", "w-000000001.jsonl.damaged", "notes"):
        (tmp_path / name).touch()
    assert taken(tmp_path) == []


def test_a_directory_that_is_not_there_holds_none(tmp_path: Path) -> None:
    assert taken(tmp_path / "nowhere") == []


def test_lines_can_be_read_twice_and_empty_ones_do_not_count(tmp_path: Path) -> None:
    make(tmp_path, "w", b"one\n\ntwo\nthr")
    for (segment,) in dead(tmp_path):
        assert list(segment.lines()) == list(segment.lines()) == [b"one\n", b"two\n", b"thr"]


@pytest.mark.parametrize(("keep", "left"), [(False, []), (True, ["w-000000001.jsonl.damaged"])])
def test_a_segment_is_deleted_or_set_aside(tmp_path: Path, keep: bool, left: list[str]) -> None:
    make(tmp_path, "w")
    for (segment,) in dead(tmp_path):
        segment.remove(keep=keep)
    assert names(tmp_path) == left


def test_an_owner_whose_empty_file_was_deleted_before_it_was_locked_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may come between the opening of a new segment and its lock."""
    lock = segments._lock
    stolen: list[int] = []

    def late(file: int) -> bool:
        if not stolen:
            stolen.append(file)
            (tmp_path / "w-000000001.jsonl").unlink()
        return lock(file)

    monkeypatch.setattr(segments, "_lock", late)
    path, file = create(tmp_path, "w")
    os.close(file)
    assert path.name == "w-000000002.jsonl"
    assert names(tmp_path) == ["w-000000002.jsonl"]


def test_an_owner_whose_new_file_was_locked_by_another_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = segments._lock
    answers = [False]
    monkeypatch.setattr(segments, "_lock", lambda file: answers.pop() if answers else lock(file))
    path, file = create(tmp_path, "w")
    os.close(file)
    assert path.name == "w-000000002.jsonl"


def test_a_name_taken_meanwhile_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "w")
    monkeypatch.setattr(segments, "_listed", lambda _: [])
    path, file = create(tmp_path, "w")
    os.close(file)
    assert path.name == "w-000000002.jsonl"


def test_a_segment_deleted_between_listing_and_opening_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "w-000000001.jsonl"
    monkeypatch.setattr(segments, "_listed", lambda _: [("w", 1, gone)])
    assert list(dead(tmp_path)) == []


def test_a_part_written_is_followed_by_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, file = create(tmp_path, "w")
    write = os.write
    monkeypatch.setattr(os, "write", lambda f, data: write(f, data[:3]))
    write_all(file, b"a whole line\n", sync=True)
    monkeypatch.undo()
    os.close(file)
    assert path.read_bytes() == b"a whole line\n"


def test_dead_knows_its_place(tmp_path: Path) -> None:
    path = make(tmp_path, "w", b"x")
    segment = Dead(path, os.open(path, os.O_RDONLY))
    assert segment.path == path
    segment.close()
