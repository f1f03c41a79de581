"""How several gateways are set up to share their replicas, and what their operators are told of it. No slot is asked
for here."""

from __future__ import annotations

from msgspec import Struct


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Where several gateways in front of the same replicas keep what they share. Without ``redis`` each is alone."""

    redis: str = ""
    """redis://[[user]:password@]host[:port][/db], or rediss:// for TLS, or unix://path."""
    redis_env: str = ""
    """The environment variable that holds it: for URLs with a password."""
    site: str = "wastegate"
    """Gateways with the same name share; those of other fleets need another."""
    wait_seconds: float = 0.25
    """A claim waits for Redis for so long at most."""
    lease_seconds: float = 10.0
    """What a gateway holds is free again when it has been silent for so long."""
    beat_seconds: float = 0.5
    """Between two signs of life; with each it hears of the others' load."""
    retry_seconds: float = 1.0
    """Between two attempts to join again."""

    def __post_init__(self) -> None:
        if self.redis and not self.redis.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("redis must begin with redis://, rediss:// or unix://")
        if not self.site or not self.site.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise ValueError(f"site is {self.site!r}: use letters, digits, '-', '_' and '.'")
        if min(self.wait_seconds, self.lease_seconds, self.beat_seconds, self.retry_seconds) <= 0:
            raise ValueError("wait_seconds, lease_seconds, beat_seconds and retry_seconds must be above 0")
        if self.lease_seconds < 4 * self.beat_seconds:
            raise ValueError("lease_seconds must be at least four times beat_seconds: a late beat must cost no slot")


class Status(Struct, frozen=True):
    """How this gateway stands with the others, for its operator."""

    state: str
    """"joined" or "alone"."""
    redis: str
    """Host and port."""
    gateways: int
    """That share, this one among them; while alone, as far as was known."""
    why: str
    """Why it is alone; empty otherwise."""
    claims_alone: int
    """Claims that were decided without the others, ever."""


def exposition(status: Status) -> str:
    """Prometheus text format, version 0.0.4."""
    return (
        "# HELP wastegate_shared_alone 1 while this gateway cannot ask the others and keeps to its share of each cap.\n"
        "# TYPE wastegate_shared_alone gauge\n"
        f"wastegate_shared_alone {int(status.state == 'alone')}\n"
        "# HELP wastegate_shared_gateways Gateways that share the replicas, as far as is known.\n"
        "# TYPE wastegate_shared_gateways gauge\n"
        f"wastegate_shared_gateways {status.gateways}\n"
        "# HELP wastegate_shared_claims_alone_total Claims that were decided without the others.\n"
        "# TYPE wastegate_shared_claims_alone_total counter\n"
        f"wastegate_shared_claims_alone_total {status.claims_alone}\n"
    )
