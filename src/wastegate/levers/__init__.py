"""The levers, in the order in which they see a plan: which replica before how to talk to it. Pure: no I/O, no clock.

Each lever is a module with a frozen ``Config`` (off by default), ``decide(plan, view, config) -> plan`` and
``measure(entries, config) -> Effect``. None is built yet: every call runs on the baseline.
"""

from __future__ import annotations

from wastegate.core.lifecycle import Lever

LEVERS: tuple[Lever, ...] = ()
