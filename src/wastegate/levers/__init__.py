"""The levers, in the order in which they see a plan: which replica before how to talk to it. Pure: no I/O, no clock.

Each lever is a module with a frozen ``Config`` (off by default), ``decide(plan, view, config) -> plan`` and
``measure(entries, config) -> Effect``. One that is off is not called at all.
"""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from wastegate.core.lifecycle import Lever
from wastegate.levers import batching, routing, streaming

LEVERS = ("routing", "batching", "streaming")
"""Those that are built, in their order: precision, offloading, routing, batching, speculation, streaming."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """``[levers]`` of wastegate.toml, a table for each; a route may have its own."""

    routing: routing.Config = routing.Config()
    batching: batching.Config = batching.Config()
    streaming: streaming.Config = streaming.Config()


def active(config: Config) -> tuple[Lever, ...]:
    """The levers that are on, ready to be handed to a lifecycle, in the order of ``LEVERS``."""
    levers: list[Lever] = []
    if config.routing.policy != "off":
        levers.append(partial(routing.decide, config=config.routing))
    if config.batching.on:
        levers.append(partial(batching.decide, config=config.batching))
    if config.streaming.decides:
        levers.append(partial(streaming.decide, config=config.streaming))
    return tuple(levers)
