"""Pages as engines write them, and lines that nobody should write: only the wanted are read, and none is guessed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.engines.exposition import Sample, parse

PAGE = """\
# HELP v:running What runs.
# TYPE v:running gauge
v:running{engine="0",model_name="a"} 3.0
v:running{engine="1",model_name="a"} 4
# TYPE v:asleep gauge
v:other 7
v:plain 1e-3 1700000000000
v:seconds_bucket{le="+Inf"} 5 # {trace_id="a"} 0.3
# EOF
"""


def test_only_what_is_wanted_is_read_but_all_names_are_known() -> None:
    page = parse(PAGE, {"v:running", "v:plain", "v:seconds_bucket", "v:absent"})
    assert page.samples["v:running"] == (
        Sample("v:running", (("engine", "0"), ("model_name", "a")), 3.0),
        Sample("v:running", (("engine", "1"), ("model_name", "a")), 4.0),
    )
    assert page.samples["v:plain"][0].value == 0.001
    assert page.samples["v:seconds_bucket"][0].label("le") == "+Inf"
    assert page.names == {"v:running", "v:asleep", "v:other", "v:plain", "v:seconds_bucket"}
    assert "v:absent" not in page.samples
    assert page.unread == 0


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("m 1", (), 1.0),
        ("m{} 1", (), 1.0),
        ("m {} 1", (), 1.0),
        ('m{a="b",} 1', (("a", "b"),), 1.0),
        ('m{ z = "1" , a = "2" } 5', (("a", "2"), ("z", "1")), 5.0),
        (r'm{a="x\"}y",b="\\"} 2', (("a", 'x"}y'), ("b", "\\")), 2.0),
        (r'm{a="one\ntwo"} 2', (("a", "one\ntwo"),), 2.0),
        ('m{a="{b}, c=1"} 3\r', (("a", "{b}, c=1"),), 3.0),
        ("m +Inf", (), math.inf),
    ],
)
def test_lines_as_engines_write_them(line: str, labels: tuple[tuple[str, str], ...], value: float) -> None:
    page = parse(line, {"m"})
    assert page.samples["m"] == (Sample("m", labels, value),)


def test_not_a_number_is_read_as_such() -> None:
    assert math.isnan(parse("m NaN", {"m"}).samples["m"][0].value)


@pytest.mark.parametrize("line", ["m", "m{", 'm{a="b"', "m{a=b} 1", 'm{a="b"} x', 'm{a="b" c="d"} 1', "m{} ", "m one"])
def test_a_line_that_makes_no_sense_costs_no_other(line: str) -> None:
    page = parse(f"m 1\n{line}\nm 2\n", {"m"})
    assert [sample.value for sample in page.samples["m"]] == [1.0, 2.0]
    assert page.unread == 1


NAMES = st.from_regex(r"[a-z_:][a-z0-9_:]{0,8}", fullmatch=True)
LABELS = st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True), st.text(max_size=8), max_size=3)


def written(name: str, labels: dict[str, str], value: float) -> str:
    escaped = {k: v.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for k, v in labels.items()}
    inside = ",".join(f'{k}="{v}"' for k, v in escaped.items())
    return f"{name}{{{inside}}} {value!r}" if labels else f"{name} {value!r}"


@given(st.lists(st.tuples(NAMES, LABELS, st.floats(allow_nan=False))))
def test_what_is_written_is_read(rows: list[tuple[str, dict[str, str], float]]) -> None:
    page = parse("\n".join(written(*row) for row in rows), {name for name, _, _ in rows})
    found = [sample for name in page.samples for sample in page.samples[name]]
    assert sorted(found, key=repr) == sorted(
        (Sample(name, tuple(sorted(labels.items())), value) for name, labels, value in rows), key=repr
    )
    assert page.unread == 0


@given(st.text())
def test_nothing_ends_the_reading(text: str) -> None:
    assert parse(text, {"m"}).unread >= 0
