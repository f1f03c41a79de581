"""A mirror says what it was last told, and no more."""

from __future__ import annotations

from tests.playbook import call, state
from wastegate.core.fleet import Replica
from wastegate.core.mirror import Mirror
from wastegate.core.prefixes import Config
from wastegate.core.reuse import Reuse
from wastegate.core.world import Breaker, RetryBudget, World


def test_a_mirror_shows_what_it_was_told() -> None:
    made = World(Breaker(), RetryBudget())
    made.set_fleet([Replica(name, f"http://{name}", ("m",), cap=2) for name in ("a", "b")])
    for name in ("a", "b"):
        made.set_state(name, "ready")
    made.take("a", 1, 0.0)
    mirror = Mirror()
    assert mirror.view(call(model="m"), 0.0, 0.5).replicas == ()
    mirror.told(made.seen(0.0), made.retry_allowed)
    seen = mirror.view(call(model="m"), 3.0, 0.5, ahead=1)
    assert (seen.now, seen.draw, seen.ahead, seen.known_models) == (3.0, 0.5, 1, ("m",))
    assert seen == made.view(call(model="m"), 3.0, 0.5, ahead=1)
    assert mirror.seen(3.0) == mirror.states == made.states
    mirror.load("a", made.load("a") + 1)
    mirror.load("stranger", 7)
    assert [s.in_flight for s in mirror.states] == [2, 0]
    assert made.load("stranger") == 0
    mirror.told(made.states, False)
    assert not mirror.view(call(model="m"), 4.0, 0.5).retry_allowed
    assert [s.in_flight for s in mirror.states] == [1, 0], "everything anew"


def test_a_mirror_tells_its_own_routing_of_the_fleet() -> None:
    mirror = Mirror()
    mirror.reuse = Reuse(Config(max_bytes=1 << 16), 300.0, 0.0)
    ready, prompt = state("a"), call(model="m", blocks=b"12345678", prompt_tokens=100)
    mirror.told([ready], True)
    mirror.reuse.sent(prompt, "a", 0.0)
    outlook = mirror.view(prompt, 1.0, 0.5).outlook
    assert outlook is not None
    assert outlook.cached == (100.0,)
    mirror.told([state("a", state="loading")], True)
    outlook = mirror.view(prompt, 1.0, 0.5).outlook
    assert outlook is not None
    assert outlook.cached == (0.0,)
