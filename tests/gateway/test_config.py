"""Addresses and paths as the configuration means them."""

from __future__ import annotations

from pathlib import Path

import pytest

from wastegate.gateway import recorder
from wastegate.gateway.config import Config, StartError, address, is_local, url


@pytest.mark.parametrize(
    ("listen", "taken"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_an_address_is_taken_apart(listen: str, taken: tuple[str, int]) -> None:
    assert address(listen) == taken


@pytest.mark.parametrize(
    "listen", ["", "8080", ":8080", "localhost", "localhost:", "localhost:http", "localhost:65536"]
)
def test_what_is_no_address_is_told_what_to_write(listen: str) -> None:
    with pytest.raises(StartError, match=r"is not an address: write host:port, such as 127\.0\.0\.1:8080"):
        address(listen)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("gateway.example", False),
        ("localhost.example", False),
    ],
)
def test_only_this_machine_is_local(host: str, local: bool) -> None:
    assert is_local(host) == local


def test_an_address_as_clients_write_it() -> None:
    assert url("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert url("::1", 443, tls=True) == "https://[::1]:443"


def test_files_lie_in_the_data_folder_unless_they_are_named() -> None:
    config = Config(Path("data"))
    assert (config.ledger_path, config.journal_path) == (Path("data/ledger.db"), Path("data/journal"))
    config = Config(Path("data"), ledger=recorder.Config(path="here.db", journal="there"))
    assert (config.ledger_path, config.journal_path) == (Path("here.db"), Path("there"))
