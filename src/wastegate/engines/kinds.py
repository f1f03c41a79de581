"""Which engine a replica is, and the room that knows it. Nothing of any one engine stands here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from wastegate.engines import llamacpp, local, sglang, vllm
from wastegate.engines.launch import Command, Common
from wastegate.engines.readback import Effective, Pages
from wastegate.engines.signals import Rules


class Engine(Protocol):
    """What each engine's room has."""

    @property
    def PREFIX(self) -> str:  # noqa: N802 - a module's constants
        """Its own metrics' names begin with this."""

    @property
    def PAGES(self) -> tuple[str, ...]:  # noqa: N802
        """What is read to see how it runs, besides /metrics. Any may be refused."""

    @property
    def LIVE(self) -> tuple[tuple[str, str], ...]:  # noqa: N802
        """What can change while it runs, and by what."""

    @property
    def RULES(self) -> Rules:  # noqa: N802
        """Its metrics in our terms."""

    @property
    def OUTDATED(self) -> dict[str, str]:  # noqa: N802
        """Flags that it does not have, each with what to write today."""

    @property
    def Config(self) -> type[Common]:  # noqa: N802
        """What it can be started with."""

    def command(self, config: Any, more: tuple[str, ...] = ()) -> Command:
        """How it is started so; ``more`` is handed on. Raises ValueError."""

    def asked(self, config: Any) -> Effective:
        """What read-back should find then."""

    def effective(self, pages: Pages) -> Effective:
        """How it runs, as far as its pages tell."""


ENGINES: dict[str, Engine] = {"vllm": vllm, "sglang": sglang, "llamacpp": llamacpp, "wastegate": local}
"""By the name that a replica's ``engine`` has."""

_OTHER_NAMES = {"local": "wastegate", "llama.cpp": "llamacpp", "llama-cpp": "llamacpp"}


def named(engine: str) -> str:
    """A configured or announced name as ours; empty where we do not know the engine."""
    name = engine.strip().lower()
    name = _OTHER_NAMES.get(name, name)
    return name if name in ENGINES else ""


MARKS: dict[str, tuple[str, str]] = {
    "llamacpp": ("/props", "default_generation_settings"),
    "sglang": ("/server_info", "tp_size"),
    "vllm": ("/version", "version"),
}
"""An engine without metrics is told by a page that it alone has, and a key on it."""


def by_pages(pages: Mapping[str, Any]) -> str:
    """The engine whose pages these are, by path; empty where they are nobody's."""
    for engine, (path, key) in MARKS.items():
        page = pages.get(path)
        if isinstance(page, dict) and key in page:
            return engine
    return ""


def by_metrics(names: Iterable[str]) -> str:
    """The engine whose metrics these are; empty where they are nobody's. Where a router's page holds several engines',
    the most names decide."""
    counts = dict.fromkeys(ENGINES, 0)
    for name in names:
        for engine, room in ENGINES.items():
            counts[engine] += name.startswith(room.PREFIX)
    best = max(counts, key=lambda engine: counts[engine])
    return best if counts[best] else ""
