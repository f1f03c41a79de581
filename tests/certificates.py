"""Certificates made on the spot, by the openssl command: self-signed, for this machine, good for two days."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from msgspec import Struct


class Pair(Struct, frozen=True):
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path

    def server(self) -> ssl.SSLContext:
        """For who shows it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context

    def trust(self) -> ssl.SSLContext:
        """For who trusts it, and nothing else."""
        return ssl.create_default_context(cafile=str(self.cert))


def make(folder: Path, name: str = "one") -> Pair:
    """A new pair. Skips the test where there is no openssl."""
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    _openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-keyout", str(pair.key), "-out", str(pair.cert), "-subj", f"/CN={name}",
        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
    )  # fmt: skip
    return pair


def encrypted(pair: Pair) -> Path:
    """The pair's key, under a passphrase."""
    path = pair.key.with_suffix(".locked")
    _openssl("pkcs8", "-topk8", "-in", str(pair.key), "-passout", "pass:secret", "-out", str(path))
    return path


def _openssl(*arguments: str) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command to make a certificate with")
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)
