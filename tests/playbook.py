"""Scripted lifecycles: a test reads as the list of what the lifecycle asks and what it is told.

    book = Playbook(call())
    book.expect(Prepare).tell(book.call)
    book.expect(Look).tell(view(ready("a")))
    plan = book.expect(Claim).command.plan
    …
    closed = book.closed

This is the third driver of ``core.lifecycle``, beside the gateway and the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from wastegate.core.call import Call
from wastegate.core.effects import Claim, Claimed, Closed, Command, Event, Look, Prepare, Reply, Send
from wastegate.core.fleet import Replica, ReplicaState, View
from wastegate.core.ledger import Attempt, Outcome
from wastegate.core.lifecycle import Lever, lifecycle
from wastegate.core.plan import Rules, Timers

C = TypeVar("C", Prepare, Look, Claim, Send, Any)


class Playbook:
    """Plays one lifecycle, step by step."""

    def __init__(
        self, call: Call, levers: Sequence[Lever] = (), timers: Timers | None = None, rules: Rules | None = None
    ) -> None:
        self.call = call
        self._life = lifecycle(call, levers, timers or Timers(), rules or Rules())
        self._command: Command | None = next(self._life)
        self._closed: Closed | None = None

    def expect(self, kind: type[C]) -> C:
        """The command that the lifecycle waits on, which must be of this kind."""
        assert self._closed is None, f"the call is closed ({self._closed}); {kind.__name__} was expected"
        assert isinstance(self._command, kind), f"asked for {self._command!r}; {kind.__name__} was expected"
        return self._command

    def tell(self, event: Event) -> None:
        """Answer the command."""
        assert self._closed is None, "the call is closed: it takes no more events"
        try:
            self._command = self._life.send(event)
        except StopIteration as stop:
            self._command, self._closed = None, stop.value

    @property
    def closed(self) -> Closed:
        assert self._closed is not None, f"the call is still open: it asked for {self._command!r}"
        return self._closed

    # ---- the usual steps

    def prepare(self) -> None:
        self.expect(Prepare)
        self.tell(self.call)

    def look(self, seen: View) -> None:
        self.expect(Look)
        self.tell(seen)

    def grant(self, at: float = 100.1) -> None:
        self.expect(Claim)
        self.tell(Claimed(True, at))

    def send(self, outcome: Outcome, **facts: Any) -> None:
        """Answer Send with an attempt on the replica that was asked."""
        plan = self.expect(Send).plan
        assert plan.replica is not None
        self.tell(reply(plan.replica.name, outcome, number=plan.number, **facts))


def call(**members: Any) -> Call:
    """A streamed chat call that arrived at 100 s."""
    base = Call(
        id="c-1", arrived=100.0, route="chat", path="/v1/chat/completions", model="m", stream=True, prompt_tokens=10
    )
    return replace(base, **members)


def state(name: str, **members: Any) -> ReplicaState:
    """A ready replica that serves model ``m``; ``cap`` goes to the replica, the rest to its state."""
    replica = Replica(name, f"http://{name}:8000", ("m",), cap=members.pop("cap", None))
    return ReplicaState(replica, **{"state": "ready", **members})


def view(*states: ReplicaState, **members: Any) -> View:
    return replace(View(now=100.0, replicas=states, draw=0.0, known_models=("m",)), **members)


def reply(replica: str, outcome: Outcome, *, number: int = 1, **facts: Any) -> Reply:
    """An attempt that was claimed at 100.1 and ended at 101; members of Reply are told apart from the attempt's."""
    outer = {key: facts.pop(key) for key in ("started", "can_continue", "retry_after", "finish_reason") if key in facts}
    attempt = Attempt(number, replica, claimed=100.1, ended=101.0, outcome=outcome)
    return Reply(replace(attempt, **facts), **outer)
