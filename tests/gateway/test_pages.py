"""Pages of somebody who may be slow, huge or gone."""

from __future__ import annotations

import gzip

import aiohttp
import pytest

from tests.fake_replica import FakeReplica, Fault, Json, Reply
from wastegate.gateway.pages import Limits, NoPageError, get

QUICK = Limits(0.2, 1)


async def test_a_page_with_its_key() -> None:
    async with FakeReplica() as fake, aiohttp.ClientSession() as session:
        fake.pages["/page"] = Reply(body=Json(body=b"x" * 1024))
        assert await get(session, f"{fake.url}/page", QUICK, "secret") == b"x" * 1024
        assert fake.probes[-1].headers["authorization"] == "Bearer secret"
        await get(session, f"{fake.url}/page", QUICK)
        assert "authorization" not in fake.probes[-1].headers


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(body=Json(body=b"x" * 1025)), "/page has more than 1 KB"),
        (Reply(body=Json(status=404, body=b"")), "/page is answered with status 404"),
        (Reply(body=Json(status=302, body=b"")), "/page is answered with status 302"),
        (Reply(body=Json(body=b""), fault=Fault("headers_read", "hang")), "/page is not answered within 0.2 s"),
        (Reply(body=Json(body=b"abc"), fault=Fault("in_head", "fin")), "/page cannot be read"),
    ],
)
async def test_what_is_no_page(reply: Reply, said: str) -> None:
    async with FakeReplica() as fake, aiohttp.ClientSession() as session:
        fake.pages["/page"] = reply
        with pytest.raises(NoPageError, match=said):
            await get(session, f"{fake.url}/page", QUICK)


async def test_what_comes_compressed_is_not_unpacked() -> None:
    small = gzip.compress(b"x" * 10_000_000)
    async with FakeReplica() as fake, aiohttp.ClientSession(auto_decompress=False) as session:
        fake.pages["/page"] = Reply(body=Json(body=small), headers=(("content-encoding", "gzip"),))
        with pytest.raises(NoPageError, match="/page comes compressed"):
            await get(session, f"{fake.url}/page", Limits(1.0, 64))
        assert fake.probes[-1].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("url", ["http://no..host/page", "http://127.0.0.1:1/page", "nonsense"])
async def test_nobody_there(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(NoPageError, match="cannot be read"):
            await get(session, url, QUICK)
