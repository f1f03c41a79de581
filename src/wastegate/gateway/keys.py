"""Who may call: the keys that clients must send, compared in constant time. No key leaves this room."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from wastegate.gateway.heads import Headers

_SCHEME = b"bearer "


class Keys:
    """The keys that are good now, kept as digests: equally long, and of no use to whoever sees them."""

    __slots__ = ("_digests",)

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def admit(self, headers: Headers) -> bool:
        """Whether ``authorization: Bearer …`` (names in lower case) holds one of them."""
        value = next((value for name, value in headers if name == b"authorization"), b"")
        if value[: len(_SCHEME)].lower() != _SCHEME:
            return False
        digest = hashlib.sha256(value[len(_SCHEME) :].strip()).digest()
        good = False
        for known in self._digests:  # all of them: how long it takes must not tell which one was near
            good |= hmac.compare_digest(known, digest)
        return good
