"""A file from a URL, whole or not at all: resumed where it broke off, its size and SHA-256 checked, written beside
and renamed. No catalogue, no model knowledge."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

CHUNK = 1 << 18
ATTEMPTS = 5
"""Tries at one file, each resuming where the last one broke off."""

Progress = Callable[[int, int], None]
"""Told bytes so far and bytes in all (0 where the server does not say)."""


class DownloadError(Exception):
    """The file could not be fetched, or is not the one that was meant; the sentence says which."""


class Network(Struct, frozen=True):
    """How the outside is reached; values, since this room reads no environment."""

    certificates: str = ""
    """A file (or directory) of certificate authorities beside the system's; empty for the system's alone."""
    timeout: float = 60.0
    """Seconds without a byte before a try is given up."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold ``path`` as a lock between processes; waits while another holds it. It ends with its process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def download(url: str, target: Path, *, size: int = 0, sha256: str = "", network: Network, progress: Progress) -> None:
    """Fetch ``url`` into ``target``. A ``.part`` file beside it keeps what has come, for the next try.

    ``size`` (bytes) and ``sha256`` are checked where given; a file that fails is removed. The caller holds
    :func:`locked`. Raises :class:`DownloadError`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    problem: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            total = _fetch(url, part, size, network, progress)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403, 404, 410):
                raise DownloadError(f"{url}: the server answered {error.code} {error.reason}") from error
            problem = error
            continue
        _check(part, url, size or total, sha256)
        os.replace(part, target)
        return
    raise DownloadError(
        f"{url}: gave up after {ATTEMPTS} tries ({problem}); what has come is kept, so running it again goes on"
    ) from problem


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(url: str, part: Path, size: int, network: Network, progress: Progress) -> int:
    """One try: append to ``part`` what it lacks. The whole size that the server named, or 0."""
    have = part.stat().st_size if part.exists() else 0
    if size and have >= size:
        return size  # complete already, or too long: the check decides
    headers = {"User-Agent": "wastegate", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = _open(urllib.request.Request(url, headers=headers), network)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing after what we have: it is whole, or a rest of another file
            error.close()
            return _size_in_range(error.headers.get("Content-Range", "")) or have
        raise
    with response:
        resumed = response.status == 206 and _starts_at(response.headers.get("Content-Range", ""), have)
        if not resumed:  # a server without ranges sends all of it again
            have = 0
        length = int(response.headers.get("Content-Length") or 0)
        total = size or (have + length if length else 0)
        with part.open("ab" if resumed else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                have += len(chunk)
                if size and have > size:
                    break  # not the file that was meant: do not fill the disk with it
                progress(have, total)
        if length and have < total:
            raise ConnectionError(f"the connection ended after {have} of {total} bytes")
    return total


def _open(request: urllib.request.Request, network: Network) -> http.client.HTTPResponse:
    context = ssl.create_default_context()
    if network.certificates:
        where = Path(network.certificates)
        try:
            if where.is_dir():
                context.load_verify_locations(capath=str(where))
            else:
                context.load_verify_locations(cafile=str(where))
        except OSError as error:
            raise DownloadError(f"certificates at {where} cannot be read: {error}") from error
    # urllib takes HTTP_PROXY, HTTPS_PROXY and NO_PROXY by itself.
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
    response: http.client.HTTPResponse = opener.open(request, timeout=network.timeout)
    return response


def _starts_at(content_range: str, have: int) -> bool:
    return content_range.startswith(f"bytes {have}-")


def _size_in_range(content_range: str) -> int:
    total = content_range.rpartition("/")[2]
    return int(total) if total.isdigit() else 0


def _check(part: Path, url: str, size: int, sha256: str) -> None:
    have = part.stat().st_size
    if size and have != size:
        part.unlink()
        raise DownloadError(f"{url}: {have} bytes came, {size} were expected; removed, so run it again")
    if sha256 and (found := sha256_of(part)) != sha256:
        part.unlink()
        raise DownloadError(f"{url}: its SHA-256 is {found}, expected {sha256}; removed, so run it again")
