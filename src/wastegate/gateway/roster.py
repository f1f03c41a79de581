"""Who is in the fleet, in which phase, since when: the facts that idle time and overhead are charged from."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from wastegate.core.fleet import Replica, State
from wastegate.core.ledger import Phase, ReplicaSpan, Work
from wastegate.core.world import World

_PHASES: dict[State, Phase | None] = {"loading": "loading", "ready": "serving", "draining": "draining", "down": None}


class Roster:
    """The one place that changes a replica's state, so that its spans always follow."""

    def __init__(
        self,
        world: World,
        now: Callable[[], float],
        save: Callable[[list[ReplicaSpan]], None],
        changed: Callable[[], None],
    ) -> None:
        self._world = world
        self._now = now
        self._save = save
        self._changed = changed
        """Called when the fleet is not what it was: an address, a state, a model."""
        self._replicas: dict[str, Replica] = {}
        self._spans: dict[str, ReplicaSpan] = {}
        self._work: dict[str, tuple[Work | None, int | None]] = {}
        self._probed: dict[str, float] = {}
        self._joules: dict[str, float] = {}
        """Within the present span; without an entry nobody measures them."""
        self._unmeasurable: set[str] = set()
        self._drained: set[str] = set()
        """Those that an operator keeps from new calls."""
        self._leaving: set[str] = set()
        """Those that are configured no more, and still have calls."""

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return tuple(self._replicas.values())

    def set(self, replicas: Iterable[Replica]) -> None:
        """The whole list anew. A replica that is no longer named ends its span, one with another price begins one."""
        new = {replica.name: replica for replica in replicas}
        for name in self._replicas.keys() - new.keys():
            self._end(name)
            self._forget(name)
        billed_anew = {
            name: span.phase for name, span in self._spans.items() if _bill(new[name]) != _bill(self._replicas[name])
        }
        for name in billed_anew:
            self._end(name)
        self._replicas = new
        self._world.set_fleet(new.values())
        for name, phase in billed_anew.items():
            self._begin(name, phase)
        self._changed()

    def put(self, replica: Replica) -> None:
        """Add one, or give one a new address."""
        self.set([*(r for r in self._replicas.values() if r.name != replica.name), replica])

    def change(self, replicas: Iterable[Replica]) -> None:
        """Another fleet from now on. Those that are gone finish the calls that they have; those that are new or
        listen elsewhere take none before they are found ready."""
        new = {replica.name: replica for replica in replicas}
        gone = self._replicas.keys() - new.keys()
        fresh = [
            replica
            for name, replica in new.items()
            if name not in self._replicas or self._replicas[name].url != replica.url or name in self._leaving
        ]
        self._leaving = (self._leaving | gone) - new.keys()
        for replica in fresh:
            self._work.pop(replica.name, None)
            self._unmeasurable.discard(replica.name)
        self.set([*new.values(), *(self._replicas[name] for name in self._leaving)])
        for replica in fresh:
            self.state(replica.name, "loading")
        self.settle()
        for name in self._leaving:
            if self._state_of(name) == "ready":
                self.state(name, "draining")

    def settle(self) -> None:
        """Let those go that leave and have no call left. To be asked for now and then."""
        if not self._leaving:
            return
        busy = {state.replica.name for state in self._world.states if state.in_flight}
        idle = self._leaving - busy
        if idle:
            self._leaving -= idle
            self.set(replica for name, replica in self._replicas.items() if name not in idle)

    def drain(self, name: str) -> None:
        """No new calls, whatever probes say, until ``undrain``; those that run finish. Raises KeyError."""
        state = self._state_of(name)
        self._drained.add(name)
        if state == "ready":
            self.state(name, "draining")

    def undrain(self, name: str) -> None:
        """Calls may come again. Raises KeyError."""
        state = self._state_of(name)
        self._drained.discard(name)
        if state == "draining" and name not in self._leaving:
            self.state(name, "ready")

    def drained(self, name: str) -> bool:
        """An operator keeps it from new calls."""
        return name in self._drained

    def _state_of(self, name: str) -> State:
        return {state.replica.name: state.state for state in self._world.states}[name]

    def state(self, name: str, state: State) -> None:
        """A new state: the old span ends where the next begins."""
        if name not in self._replicas:
            return
        if state == "ready" and (name in self._drained or name in self._leaving):
            state = "draining"
        phase = _PHASES[state]
        span = self._spans.get(name)
        if span is None or span.phase != phase:
            self._end(name)
            if phase is not None:
                self._begin(name, phase)
        self._world.set_state(name, state)
        self._changed()

    def probed(self, name: str, seconds: float) -> None:
        """A probe has kept the replica busy for so long."""
        self._probed[name] = self._probed.get(name, 0.0) + seconds

    def used(self, name: str, joules: float) -> None:
        """Its accelerators have used so much energy more."""
        if name in self._spans:
            self._joules[name] = self._joules.get(name, 0.0) + joules

    def named(self, name: str, models: tuple[str, ...], engine: str) -> None:
        """What the replica says that it is."""
        self._world.set_models(name, models, engine)
        self._changed()

    def may_measure(self, name: str) -> bool:
        return name not in self._unmeasurable

    def unmeasurable(self, name: str) -> None:
        """This engine does not say what its steps cost."""
        self._unmeasurable.add(name)

    def measured(self, name: str, work: Work | None, kv_capacity: int | None = None) -> None:
        """The replica's own measure of its step time, and how many tokens its KV cache holds."""
        self._work[name] = work, kv_capacity

    def _begin(self, name: str, phase: Phase) -> None:
        now = self._now()
        replica = self._replicas[name]
        self._probed[name] = 0.0
        self._joules.pop(name, None)
        self._spans[name] = ReplicaSpan(
            replica=name,
            phase=phase,
            start=now,
            end=None,
            price=replica.price,
            seen=now,
            accelerator=replica.accelerator,
            engine=replica.engine,
        )
        self._save([self._spans[name]])

    def _current(self, name: str, end: float | None) -> ReplicaSpan:
        state = next((s for s in self._world.states if s.replica.name == name), None)
        models = state.replica.models if state is not None else ()
        work, kv_capacity = self._work.get(name, (None, None))
        return replace(
            self._spans[name],
            end=end,
            seen=self._now(),
            model=models[0] if models else "",
            engine=state.replica.engine if state is not None else "",
            probe_seconds=self._probed.get(name, 0.0),
            work=work,
            kv_capacity=kv_capacity,
            joules=self._joules.get(name),
        )

    def _end(self, name: str) -> None:
        if name in self._spans:
            self._save([self._current(name, self._now())])
            del self._spans[name]

    def _forget(self, name: str) -> None:
        for known in (self._work, self._probed, self._joules):
            known.pop(name, None)
        for names in (self._unmeasurable, self._drained, self._leaving):
            names.discard(name)

    def beat(self) -> None:
        """Note that open spans still last, so that a killed gateway's spans end when it was last alive."""
        if self._spans:
            self._save([self._current(name, None) for name in self._spans])

    def close(self) -> None:
        for name in list(self._spans):
            self._end(name)


def _bill(replica: Replica) -> tuple[int, str]:
    return replica.price, replica.accelerator
