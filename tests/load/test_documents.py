"""JSON is read as other tools write it, a piece at a time, and what is broken is told with its line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wastegate.load import documents
from wastegate.load.documents import Line, Unread, Value, lines, values


def file(folder: Path, text: str, name: str = "x.json") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path) -> list[tuple[int, object]]:
    """(line, value); the reason where it could not be read."""
    return [
        (int(row.where.rsplit(" ", 1)[1]), row.value if isinstance(row, Value) else row.reason) for row in values(path)
    ]


def test_a_value_a_line(tmp_path: Path) -> None:
    assert read(file(tmp_path, '{"a": 1}\n\n{"a": 2}\n')) == [(1, {"a": 1}), (3, {"a": 2})]


def test_a_bad_line_is_told_and_the_next_one_read(tmp_path: Path) -> None:
    assert read(file(tmp_path, '{"a": 1\n{"a": 2}\n{"a"\n')) == [(1, "not JSON"), (2, {"a": 2}), (3, "not JSON")]
    assert read(file(tmp_path, '{"a"\n{"b"\n{"a": 2}\n')) == [(1, "not JSON"), (2, "not JSON"), (3, {"a": 2})]


def test_one_object_over_many_lines(tmp_path: Path) -> None:
    assert read(file(tmp_path, json.dumps({"a": [1, {"b": 2}]}, indent=2))) == [(1, {"a": [1, {"b": 2}]})]


def test_a_document_that_breaks_off_is_one_fault(tmp_path: Path) -> None:
    assert read(file(tmp_path, '{\n  "a": [\n    1,\n')) == [(1, "not JSON")]


def test_the_members_of_a_list_have_their_lines(tmp_path: Path) -> None:
    text = json.dumps([{"a": 1}, {"a": 2}], indent=1)
    assert read(file(tmp_path, text)) == [(2, {"a": 1}), (5, {"a": 2})]
    assert read(file(tmp_path, '[{"a":1},\n 7]')) == [(1, {"a": 1}), (2, 7)]
    assert read(file(tmp_path, "[]")) == []
    assert read(file(tmp_path, " [\n[1], []\n]\n")) == [(2, [1]), (2, [])]


def test_a_list_that_breaks_off_keeps_what_stood_before(tmp_path: Path) -> None:
    assert read(file(tmp_path, '[{"a": 1},\n{"a": ')) == [(1, {"a": 1}), (2, "not JSON")]
    assert read(file(tmp_path, '[{"a": 1},\n')) == [(1, {"a": 1}), (2, "not JSON")]
    assert read(file(tmp_path, '[{"a": 1}, oh, {"a": 2}]')) == [(1, {"a": 1}), (1, "not JSON")]


def test_a_long_list_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_CHUNK", 7)
    members = [{"number": n, "text": "x" * (n % 30)} for n in range(50)]
    assert [value for _, value in read(file(tmp_path, json.dumps(members)))] == members


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.lists(st.integers()))))
def test_any_objects_come_back_however_they_were_written(tmp_path: Path, some: list[dict[str, object]]) -> None:
    one_a_line = file(tmp_path, "".join(json.dumps(value) + "\n" for value in some))
    assert [value for _, value in read(one_a_line)] == some
    for indent in (None, 2):
        assert [value for _, value in read(file(tmp_path, json.dumps(some, indent=indent)))] == some


def test_packed_files_and_byte_order_marks_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress('\ufeff{"a": "ü"}\n'.encode()))
    assert read(path) == [(1, {"a": "ü"})]


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    assert list(values(file(tmp_path, " \n\n"))) == []


def test_what_is_too_long_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST", 40)
    monkeypatch.setattr(documents, "_CHUNK", 16)
    long = json.dumps({"a": "x" * 100})
    assert read(file(tmp_path, f'{{"a": 1}}\n{long}\n{{"a": 2}}\n')) == [(1, {"a": 1}), (2, "too long"), (3, {"a": 2})]
    assert read(file(tmp_path, f'[{{"a": 1}},\n{long}]')) == [(1, {"a": 1}), (2, "too long")]
    assert read(file(tmp_path, json.dumps({"a": [1] * 12}, indent=1))) == [(1, "too long")]


def test_lines_are_numbered_and_bad_bytes_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"one\r\n\r\n\xfftwo\n")
    found = list(lines(path))
    assert found == [Line(f"{path}, line 1", "one"), Line(f"{path}, line 3", "\ufffdtwo")]
    assert not [row for row in found if isinstance(row, Unread)]


def test_depth_without_end_is_a_fault(tmp_path: Path) -> None:
    assert read(file(tmp_path, '{"a": 1}\n' + '{"a":' * 50_000 + "\n")) == [(1, {"a": 1}), (2, "not JSON")]
