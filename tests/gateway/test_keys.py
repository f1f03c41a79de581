"""Who may call: a good key opens the door and goes no further; everybody else is told what to do."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.fake_replica import FakeReplica
from tests.gateway.running import chat, running
from wastegate.gateway.heads import Headers
from wastegate.gateway.keys import Keys

KEY, OTHER = "sk-first-0123456789", "sk-second-9876543210"


@pytest.mark.parametrize("value", [b"Bearer sk-first-0123456789", b"bearer  sk-second-9876543210 "])
def test_a_good_key_opens_the_door(value: bytes) -> None:
    assert Keys([KEY, OTHER]).admit([(b"host", b"x"), (b"authorization", value), (b"authorization", b"Bearer more")])


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"x-api-key", KEY.encode())],
        [(b"authorization", b"")],
        [(b"authorization", KEY.encode())],
        [(b"authorization", b"Basic " + KEY.encode())],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer sk-first")],
        [(b"authorization", b"Bearer sk-first-0123456789x")],
        [(b"authorization", b"Bearer \xff\xfe")],
        [(b"authorization", b"Bearer x"), (b"authorization", b"Bearer " + KEY.encode())],
    ],
)
def test_anything_else_stays_outside(headers: Headers) -> None:
    before = list(headers)
    assert not Keys([KEY, OTHER]).admit(headers)
    assert headers == before


def test_nobody_who_sees_the_keys_can_use_them() -> None:
    keys = Keys([KEY])
    assert KEY.encode() not in b"".join(keys._digests)


async def test_calls_need_a_key(tmp_path: Path) -> None:
    async with FakeReplica() as replica, running(tmp_path, replica, api_keys=(KEY, OTHER)) as gateway:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            answer = await gateway.post(chat(), headers=headers)
            assert answer.status == 401
            assert answer.header("www-authenticate") == "Bearer"
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
            assert "send 'Authorization: Bearer …'" in error["message"]
        for key in (KEY, OTHER):
            assert (await gateway.post(chat(), headers={"authorization": f"Bearer {key}"})).status == 200
        assert len(replica.calls) == 2
        assert not any("authorization" in call.headers for call in replica.calls)


async def test_only_health_is_open_to_all(tmp_path: Path) -> None:
    async with FakeReplica() as replica, running(tmp_path, replica, api_keys=(KEY,)) as gateway:
        statuses = {
            path: (await gateway.get(path)).status for path in ("/health", "/ready", "/v1/models", "/elsewhere")
        }
        assert statuses == {"/health": 200, "/ready": 200, "/v1/models": 401, "/elsewhere": 401}
        status, metrics = await gateway.admin("/metrics")
        assert status == 200
        assert b'wastegate_rejected_total{reason="key"} 2' in metrics


async def test_without_keys_the_clients_own_header_goes_on(tmp_path: Path) -> None:
    async with FakeReplica() as replica, running(tmp_path, replica) as gateway:
        await gateway.post(chat(), headers={"authorization": "Bearer theirs"})
        assert replica.calls[0].headers["authorization"] == "Bearer theirs"


async def test_a_key_leaves_no_trace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with FakeReplica() as replica, running(tmp_path, replica, api_keys=(KEY,)) as gateway:
        await gateway.post(chat(), headers={"authorization": f"Bearer {KEY}"})
        await gateway.post(chat(), headers={"authorization": f"Bearer {KEY}-and-more"})
        told = [(await gateway.admin(path))[1] for path in ("/metrics", "/admin/state", "/admin/config")]
    written = all_files(tmp_path)
    assert written, "a ledger at least"
    for text in (*told, *written, caplog.text.encode()):
        assert KEY.encode() not in text


def all_files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
