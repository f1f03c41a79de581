"""Heads that a connection repeats: taken as known only where a parser would read the request in the same way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_replica import FakeReplica
from tests.gateway.running import CHAT, Wire, chat, running
from wastegate.gateway.heads import Headers, Known, learn, read_labels

URL = b"/v1/chat/completions"
HEADERS: Headers = [(b"host", b"x"), (b"content-length", b"2"), (b"accept", b"*/*")]
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\nAccept: */*\r\n\r\n"


def known() -> Known:
    found = learn(HEAD % b"2" + b"{}", URL, HEADERS, 2)
    assert found is not None
    return found


def test_the_same_head_with_another_length() -> None:
    assert (known().url, known().headers) == (URL, HEADERS)
    assert known().body(HEAD % b"7" + b'{"a":1}') == b'{"a":1}'
    assert known().body(HEAD % b"0") == b""
    assert known().body(HEAD % b"12345678" + b"x" * 12_345_678) == b"x" * 12_345_678


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"POST",
        HEAD % b"7",  # its body is still to come
        HEAD % b"7" + b'{"a":1',
        HEAD % b"7" + b'{"a":1}POST ',  # the next one is sent ahead
        HEAD % b"+7" + b'{"a":1}',
        HEAD % b"0x7" + b'{"a":1}',
        HEAD % b"7 " + b'{"a":1}',
        HEAD % b"" + b'{"a":1}',
        HEAD % b"7, 7" + b'{"a":1}',
        HEAD % b"\xb2" + b"{}",
        HEAD % b"000000007" + b'{"a":1}',
        (HEAD % b"7" + b'{"a":1}').replace(b"Accept: */*", b"Accept: */x"),
        (HEAD % b"7" + b'{"a":1}').replace(b"Accept: */*", b"Accept: */*\r\nTransfer-Encoding: chunked"),
        (HEAD % b"7" + b'{"a":1}').replace(b"Host: x", b"Host: y"),
        b"\r\n" + HEAD % b"7" + b'{"a":1}',
        HEAD % b"12345",
    ],
)
def test_whatever_is_not_quite_the_same_is_the_parsers(data: bytes) -> None:
    assert known().body(data) is None


@given(st.binary(max_size=200), st.integers(0, 300))
def test_a_known_head_gives_its_body_and_nothing_more(body: bytes, said: int) -> None:
    assert known().body(HEAD % b"%d" % said + body) == (body if said == len(body) else None)


@pytest.mark.parametrize("header", ["Transfer-Encoding", "Expect", "Connection", "Upgrade", "Trailer", "TE"])
def test_a_head_that_changes_how_the_rest_is_read_is_not_learned(header: str) -> None:
    data = HEAD.replace(b"Accept: */*", f"{header}: x".encode()) % b"2" + b"{}"
    assert learn(data, URL, [*HEADERS[:2], (header.lower().encode(), b"x")], 2) is None


@pytest.mark.parametrize(
    ("data", "headers", "size"),
    [
        (HEAD % b"2", HEADERS, 2),  # the body came in another piece
        (b"", HEADERS, 2),  # and so did the head
        (HEAD % b"2" + b"{}" + b"POST /v1", HEADERS, 2),
        ((HEAD % b"2" + b"{}").replace(b"POST", b"GET"), HEADERS, 2),
        (b"\r\n" + HEAD % b"2" + b"{}", HEADERS, 2),
        (HEAD % b"2" + b"{}", HEADERS[:2], 2),  # a line that the parser took for no header
        (b"POST /v1 HTTP/1.1\r\nHost: x\r\n\r\n", HEADERS[:1], 0),
        (b"POST /v1 HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", [HEADERS[1], HEADERS[1]], 2),
    ],
)
def test_what_was_not_read_from_one_piece_is_not_learned(data: bytes, headers: Headers, size: int) -> None:
    assert learn(data, URL, headers, size) is None


def test_labels_of_a_head() -> None:
    labels = read_labels(
        [
            (b"host", b"x"),
            (b"authorization", b"Bearer a"),
            (b"x-wastegate-tenant", b"acme"),
            (b"x-wastegate-tag-team", b"search"),
            (b"x-wastegate-other", b"ours, unknown"),
            (b"x-request-id", b"mine"),
            (b"traceparent", b"00-1-2-01"),
            (b"accept-encoding", b"gzip"),
            (b"x-custom", b"kept"),
        ]
    )
    assert (labels.tenant, labels.tags) == ("acme", (("team", "search"),))
    assert (labels.client_id, labels.traceparent) == ("mine", "00-1-2-01")
    assert labels.authorization == b"authorization: Bearer a\r\n"
    assert labels.forwarded == b"traceparent: 00-1-2-01\r\nx-custom: kept\r\n"


def test_without_labels_there_are_defaults() -> None:
    labels = read_labels([(b"x-wastegate-tenant", b" ")])
    assert (labels.tenant, labels.tags, labels.authorization, labels.forwarded) == ("default", (), b"", b"")


def test_headers_that_the_connection_names_end_here() -> None:
    labels = read_labels(
        [(b"connection", b"x-hop, Authorization"), (b"x-hop", b"1"), (b"authorization", b"b"), (b"a", b"1")]
    )
    assert (labels.authorization, labels.forwarded) == (b"", b"a: 1\r\n")


async def test_calls_on_one_connection_keep_their_own_bodies(tmp_path: Path) -> None:
    """The same head, other bodies and lengths; whole, in pieces, and two at once."""
    bodies = [chat("a"), chat("b" * 5_000), chat("in pieces"), chat("c"), chat("d"), chat("e")]
    async with FakeReplica() as replica, running(tmp_path, replica) as gateway, await gateway.connect() as wire:
        for body in bodies[:2]:
            wire.post(body)
            assert (await wire.answer()).status == 200
        await in_pieces(wire, bodies[2])
        assert (await wire.answer()).status == 200
        wire.post(bodies[3])
        wire.post(bodies[4])
        assert [(await wire.answer()).status for _ in range(2)] == [200, 200]
        wire.post(bodies[5])
        assert (await wire.answer()).status == 200
    assert [call.body for call in replica.calls] == bodies


async def in_pieces(wire: Wire, body: bytes) -> None:
    head = b"POST %s HTTP/1.1\r\nhost: wastegate\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    data = head % (CHAT.encode(), len(body)) + body
    for start in range(0, len(data), 40):
        wire.writer.write(data[start : start + 40])
        await wire.writer.drain()
        await asyncio.sleep(0)


async def test_a_mistake_of_ours_on_a_known_head_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeReplica() as replica, running(tmp_path, replica) as gateway, await gateway.connect() as wire:
        wire.post(chat())
        assert (await wire.answer()).status == 200
        assert gateway.gateway.front is not None

        def fails(*_: object) -> None:
            raise RuntimeError("broken on purpose")

        monkeypatch.setattr(gateway.gateway.front.gate, "serve", fails)
        wire.post(chat())
        answer = await wire.answer()
        assert answer.status == 500
        assert b"has failed on this request" in answer.body
