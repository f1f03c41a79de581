"""A Prometheus server's answers."""

from __future__ import annotations

import msgspec
import pytest

from wastegate.engines.devices import from_dcgm
from wastegate.engines.exposition import Sample
from wastegate.engines.prometheus import QueryError, page, query


def answer(*series: tuple[dict[str, str], str]) -> bytes:
    result = [{"metric": metric, "value": [1.5, value]} for metric, value in series]
    return msgspec.json.encode({"status": "success", "data": {"resultType": "vector", "result": result}})


def test_the_newest_of_each_metric_is_asked_for() -> None:
    assert query({"b", "a"}) == '{__name__=~"a|b"}'
    assert query(["a"], 'cluster="x"') == '{__name__=~"a",cluster="x"}'


def test_an_answer_is_a_page() -> None:
    read = page(answer(({"__name__": "up", "job": "x"}, "1"), ({"__name__": "up"}, "NaN!")))
    assert read.samples == {"up": (Sample("up", (("job", "x"),), 1.0),)}
    assert read.unread == 1


def test_devices_come_from_it_as_from_an_exporter() -> None:
    (device,) = from_dcgm(page(answer(({"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": "GPU-1", "gpu": "0"}, "70.5"))))
    assert (device.id, device.power) == ("GPU-1", 70.5)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"status":"error","error":"bad query"}', "bad query"),
        (b'{"status":"strange"}', "strange"),
        (b'{"status":"success","data":{"resultType":"matrix","result":[]}}', "a matrix, not a vector"),
        (b"<html>", "no query result"),
        (b'{"status":"success","data":{"resultType":"vector","result":[{"metric":1}]}}', "no query result"),
    ],
)
def test_what_is_no_answer_is_told(body: bytes, said: str) -> None:
    with pytest.raises(QueryError, match=said):
        page(body)
