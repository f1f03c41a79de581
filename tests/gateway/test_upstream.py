"""Replicas are reached where they are and as they ask: prefixes, TLS by an authority of theirs, keys of their own."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest

from tests import certificates
from tests.fake_replica import FakeReplica, Fault, Reply, Sse
from tests.gateway.running import Running, chat, running
from wastegate.core.fleet import Replica
from wastegate.core.plan import Rules, Timers
from wastegate.gateway.upstream import Access, Origin, UrlError, origin_of


@pytest.fixture
def pair(tmp_path: Path) -> certificates.Pair:
    return certificates.make(tmp_path)


def trusting(pair: certificates.Pair) -> Access:
    return Access(ca_file=str(pair.cert), ca=pair.cert.read_text())


# ---- origins


@pytest.mark.parametrize(
    ("url", "reached"),
    [
        ("http://gpu-a:8000", ("gpu-a", 8000, b"", b"gpu-a:8000")),
        ("http://gpu-a", ("gpu-a", 80, b"", b"gpu-a")),
        ("http://gpu-a/", ("gpu-a", 80, b"", b"gpu-a")),
        ("http://gpu-a/v1", ("gpu-a", 80, b"", b"gpu-a")),
        ("https://[::1]/engines/a/v1/", ("::1", 443, b"/engines/a", b"[::1]")),
    ],
)
def test_a_url_is_taken_apart(url: str, reached: tuple[str, int, bytes, bytes]) -> None:
    origin = Origin(url)
    assert (origin.host, origin.port, origin.prefix, origin.host_header) == reached
    assert (origin.tls is not None) == url.startswith("https")


@pytest.mark.parametrize(
    ("url", "access", "said"),
    [
        ("gpu-a:8000", Access(), "is not an http:// or https:// URL"),
        ("ftp://gpu-a", Access(), "is not an http:// or https:// URL"),
        ("http://", Access(), "is not an http:// or https:// URL"),
        ("http://me@gpu-a", Access(), "'http://…@gpu-a': a replica's URL may have no user, query or fragment"),
        ("http://me:two words@gpu-a", Access(), "'http://…@gpu-a': a replica's URL may have no user"),
        ("ftp://:two words@gpu-a", Access(), "'ftp://…@gpu-a' is not an http:// or https:// URL"),
        ("http://gpu-a?x=two words", Access(), "'http://gpu-a': a replica's URL may have no user, query or fragment"),
        ("http://gpu-a", Access(ca_file="ca.pem", ca="x"), "is not https://, so ca_file has no use"),
        ("https://gpu-a", Access(ca_file="ca.pem", ca="words"), "ca_file ca.pem holds no certificate"),
        ("https://gpu-a", Access(ca_file="ca.pem"), "ca_file ca.pem holds no certificate"),
        ("http://gpu-a", Access("two words", "A_KEY"), "the key in A_KEY holds blanks"),
        ("http://gpu-a", Access("x\r\nhost: y", "A_KEY"), "the key in A_KEY holds blanks"),
    ],
)
def test_what_cannot_be_reached_is_told_why(url: str, access: Access, said: str) -> None:
    with pytest.raises(UrlError) as caught:
        Origin(url, access)
    assert said in str(caught.value)
    assert "two words" not in str(caught.value)


def test_a_replica_without_an_authority_of_its_own_is_trusted_by_the_systems() -> None:
    tls = Origin("https://gpu-a").tls
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_a_replica_with_a_key_of_its_own_gets_a_header_line_for_it() -> None:
    assert Origin("http://gpu-a", Access("theirs")).authorization == b"authorization: Bearer theirs\r\n"
    assert Origin("http://gpu-a").authorization == b""


def test_what_is_known_of_an_address_is_used_again() -> None:
    here, there = Origin("https://here"), Origin("https://there")
    assert origin_of("https://there", here, there) is there
    assert origin_of("https://here", None, here) is here
    assert origin_of("http://elsewhere", here, None).url == "http://elsewhere"


# ---- replicas that speak TLS


async def test_streams_and_whole_answers_come_over_tls(tmp_path: Path, pair: certificates.Pair) -> None:
    async with (
        FakeReplica(tls=pair.server()) as replica,
        running(tmp_path / "data", replica, access={"r1": trusting(pair)}) as gateway,
    ):
        assert replica.url.startswith("https://")
        assert (await gateway.post(chat())).status == 200
        replica.default = Reply(body=Sse(chunks=5))
        answer = await gateway.post(chat(stream=True))
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert [call.connection for call in replica.calls] == [replica.calls[0].connection] * 2, "it is kept alive"
        assert [entry.outcome for entry in await gateway.closed(2)] == ["finished"] * 2


async def test_a_hang_up_reaches_a_replica_over_tls(tmp_path: Path, pair: certificates.Pair) -> None:
    silent = Reply(body=Sse(), fault=Fault("before_first_token"))
    async with (
        FakeReplica(silent, tls=pair.server()) as replica,
        running(tmp_path / "data", replica, access={"r1": trusting(pair)}) as gateway,
    ):
        wire = await gateway.connect()
        wire.post(chat(stream=True))
        (call,) = await replica.wait_calls(1)
        await call.wait("body")
        wire.reset()
        await call.wait("closed", limit=1.0)
        assert (await gateway.closed(1))[0].outcome == "hung_up"


async def test_a_replica_that_dies_mid_stream_over_tls_is_a_cut(tmp_path: Path, pair: certificates.Pair) -> None:
    dying = Reply(body=Sse(chunks=3), fault=Fault("between_tokens", "reset"))
    async with (
        FakeReplica(dying, tls=pair.server()) as replica,
        running(tmp_path / "data", replica, access={"r1": trusting(pair)}) as gateway,
    ):
        answer = await gateway.post(chat(stream=True))
        assert not answer.complete
        (entry,) = await gateway.closed(1)
        assert (entry.outcome, entry.reason[:4]) == ("failed", "cut:")


async def test_a_replica_that_nobody_vouches_for_gets_no_call(tmp_path: Path, pair: certificates.Pair) -> None:
    """Neither a probe nor a call goes to it: it might be anybody."""
    stranger = certificates.make(tmp_path, "stranger")
    async with (
        FakeReplica(tls=stranger.server()) as replica,
        running(
            tmp_path / "data", replica, ready=False, access={"r1": trusting(pair)}, rules=Rules(hold=0.1)
        ) as gateway,
    ):
        await _state(gateway, "down")
        gateway.world.set_state("r1", "ready")
        gateway.world.set_models("r1", ("fake",))
        answer = await gateway.post(chat())
        assert answer.status == 502
        assert "certificate verify failed" in answer.error
        assert replica.probes == replica.calls == []


async def test_a_handshake_that_never_comes_is_a_connect_timeout(tmp_path: Path, pair: certificates.Pair) -> None:
    mute = Reply(fault=Fault("accepted"))
    async with (
        FakeReplica(mute) as replica,
        running(
            tmp_path / "data",
            Replica("r1", f"https://127.0.0.1:{replica.port}", ("fake",)),
            ready=False,
            access={"r1": trusting(pair)},
            timers=Timers(connect=0.2),
        ) as gateway,
    ):
        gateway.world.set_state("r1", "ready")
        answer = await gateway.post(chat())
        assert (answer.status, answer.json()["error"]["code"]) == (504, "timeout_connect")


# ---- replicas with a key


async def test_probes_and_calls_carry_the_replicas_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    access = {"r1": Access("replica-key-1", "R1")}
    async with FakeReplica() as one, FakeReplica() as two, running(tmp_path, one, two, access=access) as gateway:
        for _ in range(8):
            await gateway.post(chat(), headers={"authorization": "Bearer the-clients"})
        for replica, key in ((one, "Bearer replica-key-1"), (two, "Bearer the-clients")):
            assert {call.headers.get("authorization") for call in replica.calls} <= {key}
            assert all(call.raw_head.lower().count(b"authorization") == 1 for call in replica.calls)
        assert len(one.calls) + len(two.calls) == 8
        assert {probe.headers.get("authorization") for probe in one.probes} == {"Bearer replica-key-1"}
        assert {probe.headers.get("authorization") for probe in two.probes} == {None}
        for path in ("/admin/state", "/admin/config", "/metrics"):
            assert b"replica-key-1" not in (await gateway.admin(path))[1]
    assert "replica-key-1" not in caplog.text


async def _state(gateway: Running, state: str) -> None:
    await gateway.until(lambda: [s.state for s in gateway.world.states] == [state], f"r1 is {state}")
