"""Four formats, read whole or refused with the place that is wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wastegate.core.ledger import Attempt, Entry
from wastegate.load.rows import FORMATS, HangUp, TraceError
from wastegate.load.traces import SAMPLE, read

REAL = Path(__file__).parents[2].parent / "shared" / "traces"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(folder: Path, content: str | bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def real(name: str) -> Path:
    path = REAL / name
    if not path.exists():
        pytest.skip(f"the public trace {path.name} is not beside the project")
    return path


@pytest.mark.parametrize(
    ("name", "form", "rows", "into", "out", "seconds"),
    [
        ("azure2023/AzureLLMInferenceTrace_conv.csv", "azure", 19_366, 22_361_870, 4_088_665, 3501.722),
        ("azure2023/AzureLLMInferenceTrace_code.csv", "azure", 8_819, 18_059_974, 245_896, 3435.948),
        ("mooncake/conversation_trace.jsonl", "mooncake", 12_031, 144_793_823, 4_122_048, 3536.999),
    ],
)
def test_real_traces_are_read_whole(name: str, form: str, rows: int, into: int, out: int, seconds: float) -> None:
    trace = read(real(name))
    assert trace.format == form
    assert len(trace.rows) == rows
    assert sum(row.input_tokens or 0 for row in trace.rows) == into
    assert sum(row.output_tokens or 0 for row in trace.rows) == out
    times = [row.at for row in trace.rows if row.at is not None]
    assert times[-1] - times[0] == pytest.approx(seconds, abs=1e-3)


def test_the_sample_is_a_minute_and_a_half_of_three_tenants() -> None:
    trace = read(SAMPLE)
    times = [row.at for row in trace.rows if row.at is not None]
    assert trace.notes == ()
    assert 120 <= len(times) <= 200
    assert times == sorted(times)
    assert 60 < times[-1] < 90
    assert len({row.tenant for row in trace.rows}) == 3
    assert sum(row.hang_up is not None for row in trace.rows) >= 5
    assert sum(row.output_tokens or 0 for row in trace.rows) < 90 * 200
    assert sum(bool(row.messages and row.messages[0]["role"] == "system") for row in trace.rows) > 80


def test_azure_times_have_seven_digits_or_a_zone(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.6805909+00:00,5,6"
    rows = read(write(tmp_path, text)).rows
    assert [(row.line, row.input_tokens, row.output_tokens) for row in rows] == [(2, 374, 44), (3, 5, 6)]
    assert (rows[1].at or 0) - (rows[0].at or 0) == pytest.approx(1.0, abs=1e-5)


def test_a_mark_windows_line_ends_and_blank_lines_are_no_matter(tmp_path: Path) -> None:
    text = "\ufeff" + AZURE.replace("\n", "\r\n") + "\r\n2023-11-16 18:15:46.1,3,4\r\n\r\n"
    assert [row.line for row in read(write(tmp_path, text)).rows] == [3]


def test_mooncake_counts_milliseconds_and_keeps_blocks(tmp_path: Path) -> None:
    text = '{"timestamp": 1500, "input_length": 600, "output_length": 9, "hash_ids": [4, 5]}'
    (row,) = read(write(tmp_path, text)).rows
    assert (row.at, row.input_tokens, row.output_tokens, row.blocks) == (1.5, 600, 9, (4, 5))


def test_messages_bring_text_times_labels_and_hang_ups(tmp_path: Path) -> None:
    lines = [
        '{"timestamp": 3.5, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7, "tenant": "shop",'
        ' "route": "support", "tags": {"a": "b"}, "temperature": 0, "hang_up_after": 2, "body": {"top_k": 4}}',
        '{"timestamp": "1970-01-01T00:00:09Z", "prompt": "Once", "max_completion_tokens": 8, "stream": false,'
        ' "hang_up_after": {"tokens": 3}, "model": "m"}',
        '{"timestamp": 9, "prompt": "Twice", "hang_up_after": {"seconds": 0.5}}',
    ]
    one, two, three = read(write(tmp_path, "\n".join(lines))).rows
    assert one.messages == ({"role": "user", "content": "Hi"},)
    assert (one.at, one.output_tokens, one.tenant, one.route, one.tags) == (3.5, 7, "shop", "support", (("a", "b"),))
    assert one.params == {"temperature": 0, "top_k": 4}
    assert one.hang_up == HangUp(seconds=2.0)
    assert (two.at, two.prompt, two.output_tokens, two.stream, two.model) == (9.0, "Once", 8, False, "m")
    assert two.hang_up == HangUp(tokens=3)
    assert three.hang_up == HangUp(seconds=0.5)
    assert three.output_tokens is None


def test_an_unknown_member_is_left_out_aloud(tmp_path: Path) -> None:
    trace = read(write(tmp_path, '{"prompt": "a"}\n{"prompt": "b", "max_token": 5}'))
    assert trace.rows[1].output_tokens is None
    assert len(trace.notes) == 1
    assert "'max_token'" in trace.notes[0]
    assert "line 2" in trace.notes[0]


def entry(**more: object) -> bytes:
    base = Entry(
        id="x", arrived=100.0, ended=103.0, route="chat", path="/v1/chat/completions", model="m", tenant="t",
        length_class="short", stream=True, outcome="finished", status=200,
        attempts=(
            Attempt(number=1, replica="a", claimed=100.0, ended=101.0, outcome="failed"),
            Attempt(number=2, replica="b", claimed=101.0, ended=103.0, outcome="finished",
                    prompt_tokens=31, output_tokens=12, usage="engine"),
        ),
        tags=(("k", "v"),),
    )  # fmt: skip
    return msgspec.json.encode({**msgspec.to_builtins(base), **more}) + b"\n"


def test_our_own_entries_come_back_as_rows(tmp_path: Path) -> None:
    trace = read(write(tmp_path, entry() + entry(outcome="hung_up", prompt_tokens=9, output_tokens=2)))
    one, two = trace.rows
    assert trace.format == "export"
    assert (one.at, one.input_tokens, one.output_tokens, one.tenant, one.route) == (100.0, 31, 12, "t", "chat")
    assert (one.model, one.tags, one.stream, one.hang_up) == ("m", (("k", "v"),), True, None)
    assert (two.input_tokens, two.output_tokens, two.hang_up) == (9, 2, HangUp(seconds=3.0))


def test_an_entry_without_counts_has_no_lengths(tmp_path: Path) -> None:
    (row,) = read(write(tmp_path, '{"arrived": 5, "attempts": []}')).rows
    assert (row.input_tokens, row.output_tokens) == (None, None)


def test_a_limit_reads_no_further(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE + "2023-11-16 18:15:46.1,3,4\nbroken")
    assert len(read(path, limit=1).rows) == 1


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    path = write(tmp_path, '{"timestamp": 1, "input_length": 5, "output_length": 2}')
    with pytest.raises(TraceError, match="needs either messages or prompt"):
        read(path, "messages")
    assert read(path, "mooncake").rows[0].blocks == ()


BAD = [
    ("", "the file is empty"),
    ("\n \n", "the file is empty"),
    (AZURE, "a header but no row"),
    ("a,b,c\n1,2,3", "line 1: not a known trace: it begins with 'a,b,c'"),
    ('{"x": 1}', "line 1: not a known trace: it begins with a JSON object with the members x"),
    (AZURE + "2023-11-16 18:15:46.1,3", "line 2, column 24: 2 cells where the header has 3"),
    (AZURE + "yesterday,3,4", "line 2, column 1: TIMESTAMP is 'yesterday'"),
    (AZURE + "2023-11-16 18:15:46.1,3,-4", "line 2, column 25: GeneratedTokens is '-4'"),
    (AZURE + "2023-11-16 18:15:46.1,3.5,4", "line 2, column 23: ContextTokens is '3.5'"),
    ('{"prompt": "a"}\n{"prompt": "b"', r"line 2, column 1\d: not JSON"),
    ('{"prompt": "a"}\n[1]', "line 2, column 1: a list where a JSON object is needed"),
    ('{"prompt": "a"}\n{"prompt": 5}', "line 2, column 2: prompt: must be a string"),
    ('{"prompt": "a", "messages": []}', "line 1, column 1: a row needs either messages or prompt"),
    ('{"messages": []}', "line 1, column 2: messages: must be a list of objects"),
    ('{"messages": [{"content": "x"}]}', "messages: must be a list of objects, each with a role"),
    ('{"prompt": "a", "max_tokens": "9"}', "line 1, column 17: max_tokens: '9' is not a whole number"),
    ('{"prompt": "a", "tags": {"a": 1}}', "column 17: tags: must be an object of strings"),
    ('{"prompt": "a", "tags": {"a b": "1"}}', "column 17: tags: 'a b' cannot be sent as a header"),
    ('{"prompt": "a", "tenant": "x\\ny"}', "column 17: tenant: must be a string on one line"),
    ('{"prompt": "a", "stream": 1}', "column 17: stream: must be true or false"),
    ('{"prompt": "a", "body": 1}', "column 17: body: must be an object"),
    ('{"prompt": "a", "hang_up_after": 0}', "column 17: hang_up_after: must be seconds above 0"),
    ('{"prompt": "a", "hang_up_after": {"tokens": 0}}', "hang_up_after: must be"),
    ('{"prompt": "a", "hang_up_after": {"tokens": 1, "seconds": 1}}', "hang_up_after: must be"),
    ('{"prompt": "a", "timestamp": "soon"}', "column 17: timestamp: 'soon' is neither seconds nor a moment"),
    ('{"prompt": "a", "timestamp": 1}\n{"prompt": "a"}', "line 2: this row has no timestamp but others have"),
    ('{"timestamp": 1, "input_length": 9, "hash_ids": [1]}', "column 1: output_length is missing"),
    ('{"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [1, 2]}', "column 57: hash_ids: 2 blocks"),
    ('{"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": ["a"]}', "hash_ids: must be a list of whole"),
    ('{"timestamp": "x", "input_length": 9, "output_length": 1}', "column 2: timestamp: 'x' is not a number"),
    ('{"arrived": null}', "arrived is missing"),
    ('{"arrived": 1, "attempts": [1]}', "column 16: attempts: must be a list of objects"),
    (AZURE + "2023-11-16 18:15:46.1,3," + "9" * 5000, "column 25: GeneratedTokens is '999"),
    (AZURE + "x" * 140_000 + ",3,4", "line 2: not CSV: field larger than field limit"),
    ('{"prompt": "a", "max_tokens": 123456789012}', "column 17: max_tokens: 123456789012 is not a whole number"),
    ('{"prompt": ' + "[" * 50_000, "column 1: not JSON: nested too deeply"),
    (b'{"prompt": "\xff"}', "line 1, column 13: not UTF-8 text"),
]


@pytest.mark.parametrize(("content", "message"), BAD)
def test_a_bad_file_is_refused_with_its_place(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(TraceError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_a_header_that_lacks_a_column_names_it(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"line 1, column 1: the header lacks GeneratedTokens"):
        read(write(tmp_path, "TIMESTAMP,ContextTokens\n1,2"), "azure")


LINES = st.lists(st.sampled_from([*(case[0] for case in BAD if isinstance(case[0], str) and len(case[0]) < 200), "{}"]))


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode), LINES.map("\n".join).map(str.encode)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, content)
    for form in (None, *FORMATS):
        try:
            trace = read(path, form)  # type: ignore[arg-type]
        except TraceError as error:
            assert str(path) in str(error)  # noqa: PT017
        else:
            assert trace.rows


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.csv: cannot be opened: No such file"):
        read(tmp_path / "none.csv")
