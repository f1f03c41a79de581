from __future__ import annotations

import hashlib
import multiprocessing
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from wastegate.local import download as room
from wastegate.local.download import DownloadError, Network, download, locked, sha256_of

DATA = bytes(range(256)) * 4000
SHA = hashlib.sha256(DATA).hexdigest()


class Source(ThreadingHTTPServer):
    """A file server that can break off, ignore ranges, or hold another file."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.data = DATA
        self.ranges = True
        self.lengths = True
        self.breaks: list[int] = []
        """Bytes after which each of the next answers breaks off."""
        self.statuses: list[int] = []
        self.asked: list[str | None] = []
        """The Range header of each request."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file"


class Handler(BaseHTTPRequestHandler):
    server: Source

    def do_GET(self) -> None:
        source = self.server
        wanted = self.headers["Range"]
        source.asked.append(wanted)
        if source.statuses:
            self.send_error(source.statuses.pop(0))
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and source.ranges else 0
        if start >= len(source.data):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(source.data)}")
            self.end_headers()
            return
        body = source.data[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(source.data) - 1}/{len(source.data)}")
        if source.lengths:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: source.breaks.pop(0)] if source.breaks else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def source() -> Iterator[Source]:
    with Source() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "file.gguf"


def fetch(source: Source, target: Path, *, size: int = len(DATA), sha256: str = SHA) -> list[tuple[int, int]]:
    """Download; what progress was told."""
    told: list[tuple[int, int]] = []
    download(
        source.url, target, size=size, sha256=sha256, network=Network(timeout=5.0),
        progress=lambda have, total: told.append((have, total)),
    )  # fmt: skip
    return told


def part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def test_a_file_comes_whole_and_leaves_nothing_beside(source: Source, target: Path) -> None:
    told = fetch(source, target)
    assert target.read_bytes() == DATA
    assert told[-1] == (len(DATA), len(DATA))
    assert sorted(path.name for path in target.parent.iterdir()) == ["file.gguf"]
    assert sha256_of(target) == SHA


def test_what_broke_off_goes_on_where_it_was(source: Source, target: Path) -> None:
    source.breaks = [300_000, 400_000]
    fetch(source, target)
    assert target.read_bytes() == DATA
    assert source.asked == [None, "bytes=300000-", "bytes=700000-"]


def test_a_later_run_goes_on_where_an_earlier_one_was_stopped(source: Source, target: Path) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(DATA[:12345])
    told = fetch(source, target)
    assert source.asked == ["bytes=12345-"]
    assert target.read_bytes() == DATA
    assert told[0][0] > 12345


def test_a_server_without_ranges_sends_it_again(source: Source, target: Path) -> None:
    source.ranges = False
    source.breaks = [300_000]
    fetch(source, target)
    assert target.read_bytes() == DATA
    assert source.asked == [None, "bytes=300000-"]


def test_without_a_known_size_the_servers_is_used(source: Source, target: Path) -> None:
    source.breaks = [1000]
    fetch(source, target, size=0, sha256="")
    assert target.read_bytes() == DATA


def test_a_whole_part_of_unknown_size_is_recognised(source: Source, target: Path) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(DATA)
    fetch(source, target, size=0)
    assert target.read_bytes() == DATA


def test_a_server_that_names_no_length_is_believed_where_the_size_is_known(source: Source, target: Path) -> None:
    source.lengths = False
    told = fetch(source, target)
    assert target.read_bytes() == DATA
    assert told[0][1] == len(DATA)


def test_a_complete_part_needs_no_server(source: Source, target: Path) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(DATA)
    fetch(source, target)
    assert source.asked == []
    assert target.read_bytes() == DATA


def test_it_gives_up_at_last_and_keeps_what_came(source: Source, target: Path) -> None:
    source.breaks = [1000] * room.ATTEMPTS
    with pytest.raises(DownloadError, match=r"gave up after 5 tries.*running it again goes on"):
        fetch(source, target)
    assert part_of(target).read_bytes() == DATA[: 1000 * room.ATTEMPTS]
    assert not target.exists()


def test_a_server_that_is_busy_is_asked_again(source: Source, target: Path) -> None:
    source.statuses = [503, 502]
    fetch(source, target)
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_file_that_is_not_there_is_not_asked_for_again(source: Source, target: Path, status: int) -> None:
    source.statuses = [status]
    with pytest.raises(DownloadError, match=str(status)):
        fetch(source, target)
    assert len(source.asked) == 1


def test_nobody_listening_is_said(target: Path) -> None:
    with Source() as gone:
        pass
    with pytest.raises(DownloadError, match="gave up"):
        fetch(gone, target)


def test_another_files_bytes_are_refused_and_removed(source: Source, target: Path) -> None:
    source.data = DATA[:-1] + b"!"
    with pytest.raises(DownloadError, match="SHA-256"):
        fetch(source, target)
    assert list(target.parent.iterdir()) == []
    source.data = DATA
    fetch(source, target)
    assert target.read_bytes() == DATA


def test_a_damaged_part_is_found_out_and_fetched_anew(source: Source, target: Path) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(b"x" * 5000)
    with pytest.raises(DownloadError, match="SHA-256"):
        fetch(source, target)
    fetch(source, target)
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("change", [-10, 10])
def test_a_file_of_another_size_is_refused(source: Source, target: Path, change: int) -> None:
    source.lengths = False
    source.data = (DATA + b"!" * 10)[: len(DATA) + change]
    with pytest.raises(DownloadError, match=rf"{len(DATA)} were expected"):
        fetch(source, target)
    assert list(target.parent.iterdir()) == []


def test_a_server_that_sends_on_and_on_does_not_fill_the_disk(source: Source, target: Path) -> None:
    source.data = DATA * 20
    with pytest.raises(DownloadError, match="were expected"):
        fetch(source, target, size=1000)
    assert not target.exists()


def test_certificates_that_are_not_there_are_named(source: Source, target: Path, tmp_path: Path) -> None:
    network = Network(certificates=str(tmp_path / "none.pem"))
    with pytest.raises(DownloadError, match=r"none\.pem"):
        download(source.url, target, network=network, progress=lambda *_: None)


def test_a_folder_of_certificates_is_taken(source: Source, target: Path, tmp_path: Path) -> None:
    download(source.url, target, network=Network(certificates=str(tmp_path)), progress=lambda *_: None)
    assert target.read_bytes() == DATA


def _hold(lock: Path, held: multiprocessing.synchronize.Event) -> None:
    with locked(lock):
        held.set()
        threading.Event().wait(30)


def test_a_lock_keeps_another_process_out_until_its_holder_ends(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    holder = context.Process(target=_hold, args=(tmp_path / "x.lock", held))
    holder.start()
    assert held.wait(20)
    entered = threading.Event()

    def enter() -> None:
        with locked(tmp_path / "x.lock"):
            entered.set()

    waiter = threading.Thread(target=enter)
    waiter.start()
    assert not entered.wait(0.1)
    holder.kill()
    assert entered.wait(10)
    waiter.join()
    holder.join()
