"""What one routing decision costs, in CPU time of this process: 64 replicas, a prompt of 8 KB, an index in use."""

from __future__ import annotations

import random
import statistics
import time
from array import array

import numpy as np
from msgspec import Struct

from wastegate.core.call import Call
from wastegate.core.effects import Reply
from wastegate.core.fleet import Replica
from wastegate.core.ledger import Attempt
from wastegate.core.plan import Rules, Timers, baseline
from wastegate.core.prefixes import Config as Index
from wastegate.core.prefixes import Prefixes
from wastegate.core.reuse import Reuse
from wastegate.core.world import Breaker, RetryBudget, World
from wastegate.levers.routing import Config, decide

REPLICAS = 64
BLOCKS = 16
"""8 KB of prompt."""
PRODUCTS = 400


class Cost(Struct, frozen=True):
    """Microseconds of CPU: the median of rounds, and the fastest and slowest of them."""

    known: tuple[float, float, float]
    """Adds to a call: the outlook and the lever, where somebody holds more of the prompt than most."""
    cold: tuple[float, float, float]
    """… where nobody does."""
    baseline: tuple[float, float, float]
    """The view and the plan without routing, beside it."""
    kept: tuple[float, float, float]
    """Telling the index and the paces of one call: sent, begun, ended."""


class Memory(Struct, frozen=True):
    """Of the index after ``sent`` blocks."""

    sent: int
    bytes: int
    bound: int
    blocks: int


def _fleet(reuse: bool) -> World:
    world = World(Breaker(), RetryBudget())
    world.set_fleet(Replica(f"replica-{number}", f"http://host-{number}", ("m",)) for number in range(REPLICAS))
    for state in world.states:
        world.set_state(state.replica.name, "ready")
    if reuse:
        world.reuse = Reuse(Index(), 300.0, 0.0)
        world.reuse.fleet(world.states)
    return world


def _calls(draw: random.Random, count: int, cold: bool) -> list[Call]:
    system = [draw.getrandbits(64) for _ in range(4)]
    products = [[draw.getrandbits(64) for _ in range(8)] for _ in range(PRODUCTS)]
    calls = []
    for number in range(count):
        about = [draw.getrandbits(64) for _ in range(8)] if cold else draw.choice(products)
        blocks = array("Q", [*system, *about, *(draw.getrandbits(64) for _ in range(BLOCKS - 12))])
        calls.append(
            Call(
                f"c-{number}", 0.0, "r", "/v1/chat/completions", "m", stream=True, prompt_bytes=512 * BLOCKS,
                prompt_tokens=128 * BLOCKS, blocks=blocks.tobytes(),
            )
        )  # fmt: skip
    return calls


def measure(rounds: int, count: int = 2000) -> Cost:
    known, kept, plain = [], [], []
    cold = []
    for number in range(rounds):
        draw = random.Random(number)
        known_round, kept_round = _round(_calls(draw, count, cold=False), draw)
        known.append(known_round)
        kept.append(kept_round)
        cold.append(_round(_calls(draw, count, cold=True), draw)[0])
        plain.append(_plain(_calls(draw, count, cold=False)))
    return Cost(_middle(known), _middle(cold), _middle(plain), _middle(kept))


def _middle(values: list[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def _round(calls: list[Call], draw: random.Random) -> tuple[float, float]:
    """(µs that routing adds to a decision, µs of telling it): 400 calls are in flight, so that all replicas are in
    use."""
    world = _fleet(reuse=True)
    reuse = world.reuse
    assert reuse is not None
    config, timers, rules = Config(policy="prefix_aware"), Timers(), Rules()
    clock = time.process_time_ns
    decided = told = 0
    flying: list[tuple[Call, str]] = []
    for number, call in enumerate(calls):
        now = number * 0.005
        view = world.view(call, now, draw.random())
        plan = baseline(call, view, (), timers, rules)
        begin = clock()
        reuse.look(call, view.replicas, now)
        chosen = decide(plan, view, config)
        decided += clock() - begin
        assert chosen.replica is not None
        world.claim(chosen, now)
        name = chosen.replica.name
        begin = clock()
        reuse.sent(call, name, now)
        told += clock() - begin
        flying.append((call, name))
        if number >= 20:
            begin = clock()
            reuse.began(flying[-20][0].id)
            told += clock() - begin
        if number >= 400:
            old, where = flying.pop(0)
            attempt = Attempt(
                1, where, now - 0.5, now, "finished", now - 0.5, now - 0.4, now - 0.4, 200, "", 2048, 900, 20, "engine"
            )
            begin = clock()
            reuse.ended(old.id, attempt, now)
            told += clock() - begin
            world.released(Reply(attempt), now)
    return decided / len(calls) / 1e3, told / len(calls) / 1e3


def _plain(calls: list[Call]) -> float:
    world, timers, rules = _fleet(reuse=False), Timers(), Rules()
    begin = time.process_time_ns()
    for number, call in enumerate(calls):
        baseline(call, world.view(call, number * 0.005, 0.5), (), timers, rules)
    return (time.process_time_ns() - begin) / len(calls) / 1e3


def fill(blocks: int) -> Memory:
    """Send so many blocks, each once, to an index with its default bound."""
    config = Index()
    index = Prefixes(config, 0.0)
    for start in range(0, blocks, 2_000):
        chain = (np.arange(start, start + 2_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).tolist()
        index.add(f"replica-{start // 2_000 % REPLICAS}", chain, 0, start / blocks)
    return Memory(blocks, index.bytes, config.max_bytes, index.blocks)
