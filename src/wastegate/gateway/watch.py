"""The last prompts of each route, in memory only, to see where the next one parts from them. Nothing of them is handed
out, stored or logged: only an offset, a count and the name of a kind leave this room."""

from __future__ import annotations

from collections import OrderedDict

from wastegate.core.call import Divergence
from wastegate.core.divergence import diverge, same

MOST_BYTES = 64 * 1024
"""Of a prompt, from its start; what differs only beyond it is not seen."""
MOST_KEYS = 64
"""Routes and models watched at once; together with the next figure at most 16 MiB."""
_TEMPLATES = 4
"""Prompts remembered for each: a route may be used with several templates."""


class Watch:
    """Built once and handed to every route that is watched."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], list[bytes]] = OrderedDict()

    def look(self, route: str, model: str, prompt: bytes) -> Divergence | None:
        """How this prompt parts from the one most like it among the last ones; None if it does not, or is the first."""
        key = (route, model)
        known = self._last.setdefault(key, [])
        self._last.move_to_end(key)
        if len(self._last) > MOST_KEYS:
            self._last.popitem(last=False)
        head = prompt[:MOST_BYTES]
        if not known:
            known.append(head)
            return None
        shared = [same(other, 0, head, 0) for other in known]
        nearest = max(range(len(known)), key=shared.__getitem__)
        other = known[nearest]
        if shared[nearest] * 2 < min(len(other), len(head)) and len(known) < _TEMPLATES:
            known.append(head)  # perhaps another template: what it parts from is not the last of its own
        else:
            del known[nearest]
            known.append(head)
        return diverge(other, head)
