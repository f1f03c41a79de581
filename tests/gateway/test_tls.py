"""Certificates that cannot be used are told from each other; calls over TLS are like any others; a certificate is
renewed while connections are open."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import time
from pathlib import Path

import pytest

from tests import certificates
from tests.fake_replica import FakeReplica, Fault, Json, Reply, Sse
from tests.gateway.running import LIMIT, Wire, chat, running
from wastegate.gateway.app import Gateway
from wastegate.gateway.config import Config, StartError
from wastegate.gateway.serve import Limits
from wastegate.gateway.tls import Certificate, Files, Loaded, TlsError, load


@pytest.fixture
def pair(tmp_path: Path) -> certificates.Pair:
    return certificates.make(tmp_path)


def files(pair: certificates.Pair) -> Files:
    return Files(str(pair.cert), str(pair.key))


def test_a_good_pair_speaks_tls_1_2_and_newer(pair: certificates.Pair) -> None:
    loaded = load(files(pair))
    assert loaded.context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert len(loaded.sha256) == 64


def test_both_files_or_none() -> None:
    assert not Files().on
    with pytest.raises(TlsError, match="tls_cert is set, but tls_key is not: set both, or neither"):
        Files(cert="a.crt")
    with pytest.raises(TlsError, match="tls_key is set, but tls_cert is not"):
        Files(key="a.key")


def test_each_mistake_is_named(pair: certificates.Pair, tmp_path: Path) -> None:
    other = certificates.make(tmp_path, "other")
    words = tmp_path / "words"
    words.write_text("no PEM at all\n")
    damaged = tmp_path / "damaged.crt"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    locked = certificates.encrypted(pair)
    cases = {
        (tmp_path / "gone", pair.key): "tls_cert .*gone cannot be read .No such file or directory",
        (pair.cert, tmp_path / "gone"): "tls_key .*gone cannot be read .No such file or directory",
        (tmp_path, pair.key): "tls_cert .* cannot be read .Is a directory",
        (words, pair.key): "tls_cert .*words holds no certificate",
        (pair.key, pair.key): "tls_cert .* holds no certificate",
        (pair.cert, words): "tls_key .*words holds no private key",
        (pair.cert, pair.cert): "tls_key .* holds no private key",
        (pair.cert, locked): "tls_key .*locked is encrypted, and nobody is there to type its passphrase",
        (pair.cert, other.key): "the key in tls_key .*other.key does not belong to the certificate in tls_cert .*one",
        (damaged, pair.key): "tls_cert .*damaged.crt and tls_key .* cannot be used",
    }
    for (cert, key), said in cases.items():
        with pytest.raises(TlsError, match=said):
            load(Files(str(cert), str(key)))


async def test_a_gateway_does_not_start_without_its_certificate(tmp_path: Path) -> None:
    gateway = Gateway(Config(data=tmp_path, listen="127.0.0.1:0", tls=Files("gone.crt", "gone.key")))
    with pytest.raises(StartError, match=r"tls_cert gone\.crt cannot be read"):
        await gateway.run(lambda: None)


def test_a_new_handshake_shows_what_is_shown_last(pair: certificates.Pair, tmp_path: Path) -> None:
    """Also for a client that asks for an address, and so names nobody."""
    other = certificates.make(tmp_path, "other")
    shown = Certificate(load(files(pair)))
    assert _subject(shown, pair, "localhost") == "one"
    assert _subject(shown, pair, "127.0.0.1") == "one"
    shown.show(load(files(other)))
    assert _subject(shown, other, "localhost") == "other"
    assert _subject(shown, other, "127.0.0.1") == "other"


def _subject(shown: Certificate, trusted: certificates.Pair, name: str) -> str:
    """Whose certificate a client sees; its handshake is made in memory."""
    context: ssl.SSLContext = shown.options(1.0)["ssl"]
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = trusted.trust().wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(5):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    certificate = client.getpeercert()
    assert certificate is not None
    return str(dict(pairs[0] for pairs in certificate["subject"])["commonName"])  # type: ignore[misc]


async def test_a_stream_comes_piece_by_piece(pair: certificates.Pair, tmp_path: Path) -> None:
    async with (
        FakeReplica(Reply(body=Sse(chunks=3), fault=Fault("between_tokens", tokens=2))) as replica,
        running(tmp_path / "data", replica, tls=files(pair), trust=pair.trust()) as gateway,
    ):
        assert gateway.url.startswith("https://")
        async with await gateway.connect() as wire:
            wire.post(chat(stream=True))
            answer = await wire.head()
            while b" there" not in answer.body:  # the second token is here while the third is not made yet
                await wire.piece(answer)
            assert b"," not in answer.body.split(b" there")[1].split(b"}")[0]
            replica.release()
            while await wire.piece(answer):
                pass
            assert answer.body.endswith(b"data: [DONE]\n\n")
            replica.default = Reply()
            wire.post(chat())
            assert (await wire.answer()).status == 200, "the connection serves another call"
        assert [entry.outcome for entry in await gateway.closed(2)] == ["finished", "finished"]


@pytest.mark.parametrize(
    ("reply", "stream"),
    [
        (Reply(body=Sse(), fault=Fault("before_first_byte")), True),
        (Reply(body=Sse(), fault=Fault("before_first_token")), True),
        (Reply(body=Sse(chunks=3), fault=Fault("between_tokens")), True),
        (Reply(body=Json(), fault=Fault("before_first_byte")), False),
    ],
    ids=["before headers", "before the first token", "mid-stream", "not streamed"],
)
async def test_a_client_that_leaves_frees_its_replica(
    pair: certificates.Pair, tmp_path: Path, reply: Reply, stream: bool
) -> None:
    async with (
        FakeReplica(reply) as replica,
        running(tmp_path / "data", replica, tls=files(pair), trust=pair.trust()) as gateway,
    ):
        wire = await gateway.connect()
        wire.post(chat(stream=stream))
        (call,) = await replica.wait_calls(1)
        await call.wait("body")
        if reply.fault is not None and reply.fault.at == "between_tokens":
            answer = await wire.head()
            while b"Hello" not in answer.body:
                await wire.piece(answer)
        left = time.monotonic()
        wire.reset()
        closed = await call.wait("closed")
        assert closed - left < 1.0
        assert call.abandoned
        (entry,) = await gateway.closed(1)
        assert entry.outcome == "hung_up"


async def test_a_large_answer_waits_for_a_slow_client(pair: certificates.Pair, tmp_path: Path) -> None:
    body = b'{"x": "%s"}' % (b"y" * 4_000_000)
    async with (
        FakeReplica(Reply(body=Json(body=body))) as replica,
        running(tmp_path / "data", replica, tls=files(pair), trust=pair.trust()) as gateway,
        await gateway.connect(receive_buffer=4096) as wire,
    ):
        wire.post(chat())
        await replica.wait_calls(1)
        assert (await wire.answer()).body == body


async def test_plain_http_and_silence_at_a_tls_port_harm_nobody(pair: certificates.Pair, tmp_path: Path) -> None:
    limits = Limits(header_seconds=0.3)
    async with (
        FakeReplica() as replica,
        running(tmp_path / "data", replica, tls=files(pair), trust=pair.trust(), limits=limits) as gateway,
    ):
        async with await Wire.connect(gateway.url) as plain:
            plain.post(chat())
            assert b"HTTP/1.1" not in await plain.rest()
        async with await Wire.connect(gateway.url) as silent:
            began = time.monotonic()
            assert await silent.ended(), "who does not shake hands is not waited for"
            assert time.monotonic() - began < LIMIT
        assert (await gateway.post(chat())).status == 200


async def test_a_renewed_certificate_is_shown_after_a_reload(tmp_path: Path) -> None:
    old, new = certificates.make(tmp_path, "old"), certificates.make(tmp_path, "new")
    shown = certificates.Pair(tmp_path / "shown.crt", tmp_path / "shown.key")
    _copy(old, shown)
    configs: list[Config] = []
    async with (
        FakeReplica(Reply(body=Sse(), fault=Fault("between_tokens"))) as replica,
        running(tmp_path / "data", replica, tls=files(shown), trust=old.trust(), load=lambda: configs[0]) as gateway,
    ):
        assert gateway.gateway.front is not None
        configs.append(gateway.gateway.front._config)
        async with await gateway.connect() as early:
            early.post(chat(stream=True))
            answer = await early.head()

            shown.key.write_text(new.key.read_text())  # only half of the pair is there
            status, said = await gateway.admin("/admin/reload", method="POST")
            assert (status, b"does not belong" in said) == (422, True)
            async with await gateway.connect() as still:
                still.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                assert (await still.answer()).status == 200, "the old pair serves on"

            _copy(new, shown)
            assert (await gateway.admin("/admin/reload", method="POST"))[0] == 200
            with pytest.raises(ssl.SSLCertVerificationError):
                await gateway.connect()
            gateway.trust = new.trust()
            assert (await gateway.get("/health")).status == 200

            replica.release()
            while await early.piece(answer):
                pass
            assert answer.body.endswith(b"data: [DONE]\n\n"), "a call that was open goes on"


def _copy(source: certificates.Pair, target: certificates.Pair) -> None:
    shutil.copy(source.cert, target.cert)
    shutil.copy(source.key, target.key)


def test_the_digest_tells_one_pair_from_another(pair: certificates.Pair, tmp_path: Path) -> None:
    other = certificates.make(tmp_path, "other")
    first: Loaded = load(files(pair))
    assert first.sha256 == load(files(pair)).sha256 != load(files(other)).sha256


async def test_a_client_of_today_negotiates_http_1_1(pair: certificates.Pair, tmp_path: Path) -> None:
    """One that offers HTTP/2 as well must not think that it was accepted."""
    trust = pair.trust()
    trust.set_alpn_protocols(["h2", "http/1.1"])
    trust.minimum_version = ssl.TLSVersion.TLSv1_3
    async with (
        FakeReplica() as replica,
        running(tmp_path / "data", replica, tls=files(pair), trust=trust) as gateway,
        asyncio.timeout(LIMIT),
    ):
        async with await gateway.connect() as wire:
            spoken = wire.writer.get_extra_info("ssl_object")
            assert (spoken.selected_alpn_protocol(), spoken.version()) == ("http/1.1", "TLSv1.3")
        older = pair.trust()
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        async with await Wire.connect(gateway.url, trust=older) as wire:
            assert wire.writer.get_extra_info("ssl_object").version() == "TLSv1.2"
