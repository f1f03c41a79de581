"""What the gateway knows of its fleet: mutable, but no I/O and no clock. ``observe`` what happened, then ``view``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from wastegate.core.call import Call
from wastegate.core.effects import Reply
from wastegate.core.fleet import BreakerState, Replica, ReplicaState, State, View, models_of, serves
from wastegate.core.ledger import SHUTDOWN, Outcome
from wastegate.core.plan import Plan
from wastegate.core.reuse import Reuse
from wastegate.core.shares import Share


class Breaker(Struct, frozen=True, forbid_unknown_fields=True):
    """When a replica that keeps failing is set aside."""

    failures: int = 5
    """Failures in a row that open it. A 4xx is the client's fault and counts neither way."""
    rest: float = 10.0
    """Seconds before one trial call is let through."""


class RetryBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """How much retrying the whole gateway may do: a share of traffic, so that retries cannot storm."""

    share: float = 0.1
    reserve: float = 10.0
    """Retries that are allowed at once, before any traffic has earned them."""


class Result(Struct, frozen=True, gc=False):
    """How an attempt ended, as far as its replica is judged by it."""

    replica: str
    outcome: Outcome
    status: int | None = None
    retry_after: float | None = None

    @classmethod
    def of(cls, reply: Reply) -> Result:
        attempt = reply.attempt
        ours = (
            attempt.reason == SHUTDOWN
            or (attempt.reason == "timeout: total" and attempt.first_byte is not None)
            or attempt.reason.startswith("not asked")
        )
        outcome: Outcome = "lost" if ours else attempt.outcome  # it was at work, or was not asked at all
        return cls(attempt.replica, outcome, attempt.status, reply.retry_after)

    @property
    def replicas_fault(self) -> bool:
        """A 4xx is the client's fault, and "come back later" is load, not illness: both are neutral."""
        if self.status is None:
            return True
        if 400 <= self.status < 500:
            return False
        return not (self.status == 503 and self.retry_after is not None)

    @property
    def verdict(self) -> Literal["good", "bad", "neutral"]:
        """What it says of its replica's health."""
        if self.outcome == "finished" and self.status is not None and self.status < 400:
            return "good"
        return "bad" if self.outcome == "failed" and self.replicas_fault else "neutral"


_LONGEST_REST = 60.0
"""Seconds of Retry-After that are honoured at most: one replica's odd answer must not idle it for an hour."""


class _Health:
    """What a breaker remembers of one replica."""

    __slots__ = ("failures", "opened_until", "trial")

    def __init__(self) -> None:
        self.failures = 0
        self.opened_until = 0.0
        self.trial = False


class World:
    """The fleet's state. Every claim must be followed by exactly one ``released``."""

    def __init__(self, breaker: Breaker, budget: RetryBudget) -> None:
        self._breaker = breaker
        self._budget = budget
        self._states: dict[str, ReplicaState] = {}
        self._health: dict[str, _Health] = {}
        self._tokens = budget.reserve
        self._models: tuple[str, ...] = ()
        self._serving: dict[str, list[str]] = {}
        """Model → the replicas that may serve it: asked for every call."""
        self._failing = False
        """Some replica's last answer was a failure."""
        self._elsewhere: dict[str, int] = {}
        self._own_caps: dict[str, int | None] = {}
        """As configured; only of replicas whose cap is another now."""
        self._share: Share | None = None
        self.reuse: Reuse | None = None
        """What routing knows; None while nobody routes. Whoever claims tells it what was sent, begun and ended."""

    @property
    def breaker(self) -> Breaker:
        return self._breaker

    @property
    def states(self) -> tuple[ReplicaState, ...]:
        """All replicas; their load is what this gateway has given them."""
        return tuple(self._states.values())

    def seen(self, now: float) -> tuple[ReplicaState, ...]:
        """All replicas, with their breakers as they stand at ``now``, and other gateways' load on them as well."""
        return tuple(self._seen(state, now) for state in self._states.values())

    def set_rules(self, breaker: Breaker, budget: RetryBudget) -> None:
        """Other rules from now on. What has been counted so far still counts."""
        self._breaker = breaker
        self._budget = budget
        self._tokens = min(self._tokens, budget.reserve)

    def set_fleet(self, replicas: Iterable[Replica]) -> None:
        """Replace the list of replicas; those that stay keep their state, their load and what is known of them."""
        states: dict[str, ReplicaState] = {}
        for replica in replicas:
            old = self._states.get(replica.name)
            models = replica.models or (old.replica.models if old else ())
            engine = replica.engine or (old.replica.engine if old else "")
            cap = replica.cap
            if old is not None and replica.name in self._own_caps:
                self._own_caps[replica.name] = cap
                cap = old.replica.cap
            described = replace(replica, models=models, engine=engine, cap=cap)
            states[replica.name] = replace(old, replica=described) if old else ReplicaState(described)
        self._states = states
        self._health = {name: self._health.get(name, _Health()) for name in states}
        self._count_failing()
        self._elsewhere = {name: load for name, load in self._elsewhere.items() if name in states}
        self._own_caps = {name: cap for name, cap in self._own_caps.items() if name in states}
        if self.reuse is not None:
            self.reuse.fleet(states.values())
        self._list_models()

    def own_cap(self, name: str) -> int | None:
        """A replica's cap as it is configured, whatever it is now."""
        return self._own_caps[name] if name in self._own_caps else self._states[name].replica.cap

    def set_cap(self, name: str, cap: int | None) -> None:
        """Another cap from now on; None: its own again. What runs above it runs to its end."""
        old = self._states.get(name)
        if old is None:
            return
        own = self.own_cap(name)
        if cap is None:
            self._own_caps.pop(name, None)
        else:
            self._own_caps[name] = own
        self._states[name] = replace(old, replica=replace(old.replica, cap=own if cap is None else cap))

    def set_state(self, name: str, state: State) -> None:
        """A probe's or supervisor's word. It never touches load. A replica that comes up anew starts trusted."""
        old = self._states.get(name)
        if old is None or old.state == state:
            return
        if state == "ready":
            self._health[name] = _Health()
            self._count_failing()
        self._states[name] = replace(old, state=state, resting_until=0.0)
        if self.reuse is not None:
            self.reuse.fleet(self._states.values())

    def set_models(self, name: str, models: tuple[str, ...], engine: str = "") -> None:
        """What the replica says that it serves."""
        old = self._states.get(name)
        if old is None:
            return
        replica = replace(old.replica, models=models, engine=engine or old.replica.engine)
        self._states[name] = replace(old, replica=replica)
        self._list_models()

    def _list_models(self) -> None:
        self._models = models_of(self._states.values())
        self._serving = {model: self._names(model) for model in self._models}
        if self.reuse is not None:
            self.reuse.regroup()

    def _names(self, model: str) -> list[str]:
        return [name for name, state in self._states.items() if serves(state, model)]

    def view(self, call: Call, now: float, draw: float, ahead: int = 0) -> View:
        """One instant, for one call: the replicas that serve its model, and the draw that policy may use."""
        names = self._serving.get(call.model)
        if names is None:
            names = self._names(call.model)
        states = self._states
        if self._plain:
            replicas = tuple([states[name] for name in names])
        else:
            replicas = tuple([self._seen(states[name], now) for name in names])
        outlook = self.reuse.look(call, replicas, now) if self.reuse is not None else None
        return View(now, replicas, draw, ahead, self._tokens >= 1, self._models, outlook)

    @property
    def _plain(self) -> bool:
        """No breaker is near opening and nobody else has a say: states are seen as they stand."""
        return not self._failing and not self._elsewhere and self._share is None

    def _seen(self, state: ReplicaState, now: float) -> ReplicaState:
        name = state.replica.name
        breaker = self._breaker_state(self._health[name], now)
        if breaker != state.breaker:
            state = replace(state, breaker=breaker)
        elsewhere = self._elsewhere.get(name, 0)
        if elsewhere:
            state = replace(state, in_flight=state.in_flight + elsewhere)
        cap = state.replica.cap
        if self._share is not None and cap is not None:  # full with one's own share, or with everybody's calls
            cap = min(cap, self._share.cap(cap) + elsewhere)
            state = replace(state, replica=replace(state.replica, cap=cap))
        return state

    def state(self, name: str, now: float) -> ReplicaState | None:
        """One replica as :meth:`seen` has it."""
        state = self._states.get(name)
        return None if state is None else self._seen(state, now)

    def _breaker_state(self, health: _Health, now: float) -> BreakerState:
        if health.failures < self._breaker.failures:
            return "closed"
        return "open" if health.trial or now < health.opened_until else "half_open"

    def claim(self, plan: Plan, now: float) -> bool:
        """Take the plan's slot. False where it is gone: at its cap, left the fleet, or its one trial is taken."""
        return plan.replica is not None and self.take(plan.replica.name, plan.number, now)

    def take(self, name: str, number: int, now: float) -> bool:
        """The same for whoever has no plan at hand: ``number`` is the attempt's."""
        state = self._states.get(name)
        if state is None:
            return False
        seen = self._seen(state, now)
        return seen.open_to_calls(now) and self.grant(name, number, seen.breaker == "half_open")

    def grant(self, name: str, number: int, trial: bool) -> bool:
        """The same for whoever has seen to caps and breakers by itself. False only if the replica has left."""
        state = self._states.get(name)
        if state is None:
            return False
        self._health[name].trial = trial
        self._states[name] = replace(state, in_flight=state.in_flight + 1)
        if number == 1:
            self._tokens = min(self._budget.reserve, self._tokens + self._budget.share)
        else:
            self._tokens = max(0.0, self._tokens - 1)
        return True

    def told(self, name: str, elsewhere: int, failures: int, opened_until: float, trial: bool) -> None:
        """One replica as all gateways see it: the calls that others have given it, and its breaker."""
        health = self._health.get(name)
        if health is not None:
            self._elsewhere[name] = elsewhere
            health.failures, health.opened_until, health.trial = failures, opened_until, trial
            self._count_failing()

    def alone(self, share: Share) -> None:
        """Nothing is known of other gateways any more: count no load but one's own, and keep to a share of each cap.

        Breakers stay as they are, but a trial that was another's may be over unheard: it is forgotten.
        """
        self._elsewhere = {}
        self._share = share
        for health in self._health.values():
            health.trial = False

    def together(self) -> None:
        """All other gateways are heard again: the replicas' own caps hold."""
        self._share = None

    def load(self, name: str) -> int:
        """Calls in flight on a replica, whoever gave them; 0 where it is not in the fleet."""
        state = self._states.get(name)
        return 0 if state is None else state.in_flight + self._elsewhere.get(name, 0)

    def released(self, reply: Reply, now: float) -> None:
        """An attempt has ended: give back its slot and remember how the replica did."""
        self.give_back(Result.of(reply), now)

    def give_back(self, result: Result, now: float) -> None:
        """The same for whoever knows only how it ended."""
        state = self._states.get(result.replica)
        if state is None:
            return  # it left the fleet meanwhile, and its load with it
        resting = state.resting_until
        if result.retry_after is not None and result.status in (429, 503):
            resting = max(resting, now + min(result.retry_after, _LONGEST_REST))
        self._states[result.replica] = replace(state, in_flight=max(0, state.in_flight - 1), resting_until=resting)
        self._judge(self._health[result.replica], result, now)

    def _judge(self, health: _Health, result: Result, now: float) -> None:
        health.trial = False
        verdict = result.verdict
        if verdict == "good":
            if health.failures:
                health.failures = 0
                self._count_failing()
        elif verdict == "bad":
            health.failures += 1
            self._count_failing()
            if health.failures >= self._breaker.failures:
                health.opened_until = now + self._breaker.rest

    def _count_failing(self) -> None:
        self._failing = any(health.failures for health in self._health.values())

    @property
    def retry_allowed(self) -> bool:
        """The retry budget has room."""
        return self._tokens >= 1
