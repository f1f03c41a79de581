"""The certificate that clients are shown: read, checked, and renewed while connections are open. What is said over the
connection does not enter here."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from typing import Any

from msgspec import Struct

_SHUTDOWN_SECONDS = 5.0
"""How long a client may take to say goodbye; then its connection ends without."""


class TlsError(ValueError):
    """The certificate cannot be used; the text says which file, why, and what to do."""


class Files(Struct, frozen=True):
    """Where the certificate (with those that sign it, in order) and its key are, as PEM. Both empty: no TLS."""

    cert: str = ""
    key: str = ""
    sha256: str = ""
    """Of what they held when they were read, so that a renewed certificate shows."""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            has, lacks = ("tls_cert", "tls_key") if self.cert else ("tls_key", "tls_cert")
            raise TlsError(f"{has} is set, but {lacks} is not: set both, or neither to speak plain HTTP")

    @property
    def on(self) -> bool:
        return bool(self.cert)


class Loaded(Struct, frozen=True):
    """A certificate that has been read and found whole."""

    context: ssl.SSLContext
    sha256: str
    """Of both files: another one means that the certificate has been renewed."""


def load(files: Files) -> Loaded:
    """Read both files. Raises TlsError where one cannot be read, is not what it should be, or they do not match."""
    cert, key = _read("tls_cert", files.cert), _read("tls_key", files.key)
    if b"-----BEGIN CERTIFICATE-----" not in cert:
        raise TlsError(f"tls_cert {files.cert} holds no certificate: it must be PEM (-----BEGIN CERTIFICATE-----)")
    if b"PRIVATE KEY-----" not in key:
        raise TlsError(f"tls_key {files.key} holds no private key: it must be PEM (-----BEGIN PRIVATE KEY-----)")
    if b"ENCRYPTED" in key:
        raise TlsError(f"tls_key {files.key} is encrypted, and nobody is there to type its passphrase: decrypt it")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.cert, files.key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"the key in tls_key {files.key} does not belong to the certificate in tls_cert {files.cert}"
            raise TlsError(f"{why}: name the pair that was made together") from None
        why = error.reason or "damaged PEM"
        raise TlsError(f"tls_cert {files.cert} and tls_key {files.key} cannot be used ({why})") from None
    except OSError as error:
        raise TlsError(f"tls_cert {files.cert} and tls_key {files.key} cannot be read ({error.strerror})") from None
    return Loaded(context, hashlib.sha256(cert + b"\0" + key).hexdigest())


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TlsError(f"{name} {path} cannot be read ({error.strerror})") from None


class Certificate:
    """What a listener shows. After ``show`` new connections get the new one; those that are open go on."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self._listening = loaded.context
        # The context of a listener cannot be exchanged, but each handshake may choose another one.
        self._listening.sni_callback = self._choose

    def show(self, loaded: Loaded) -> None:
        self.loaded = loaded

    def _choose(self, handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        handshake.context = self.loaded.context

    def options(self, handshake_seconds: float) -> dict[str, Any]:
        """For ``loop.create_server``."""
        return {
            "ssl": self._listening,
            "ssl_handshake_timeout": handshake_seconds,
            "ssl_shutdown_timeout": _SHUTDOWN_SECONDS,
        }
