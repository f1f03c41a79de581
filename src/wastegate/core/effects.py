"""What the lifecycle asks for (commands) and what it is told (events). Values only; a driver gives them life."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from wastegate.core.call import Call
from wastegate.core.fleet import View
from wastegate.core.ledger import Attempt, Entry, Outcome
from wastegate.core.plan import Plan, Refusal, Wait

# ---- commands: what the lifecycle yields


class Prepare(Struct, frozen=True, gc=False):
    """Work on the call itself, before any decision. Answered by the Call, completed."""

    call: Call


class Look(Struct, frozen=True, gc=False):
    """The fleet at this instant. Answered by a View."""

    call: Call
    tried: tuple[Attempt, ...]


class Queue(Struct, frozen=True, gc=False):
    """A place in the line. Answered by Woken."""

    call: Call
    wait: Wait


class Claim(Struct, frozen=True, gc=False):
    """The plan's slot, load and budget at once. Answered by Claimed."""

    plan: Plan


class Send(Struct, frozen=True, gc=False):
    """The call to the plan's replica, the answer to the client as it comes. Answered by Reply."""

    plan: Plan
    claimed: float
    continues: bool = False
    """Part of the answer is with the client: send what it has along, and relay only what is new."""


class Join(Struct, frozen=True, gc=False):
    """To fly along with the call ``plan.joins``: what it is answered goes to this one's client too. Answered by
    Joined."""

    plan: Plan


Command = Prepare | Look | Queue | Claim | Send | Join

# ---- events: what the lifecycle is sent


class Woken(Struct, frozen=True, gc=False):
    """The wait is over: it may look again, or the line was full, the time ran out, the client left."""

    why: Literal["turn", "full", "deadline", "hung_up"]
    at: float


class Claimed(Struct, frozen=True, gc=False):
    granted: bool
    at: float


class Reply(Struct, frozen=True, gc=False):
    """How one attempt ended. Failures and hang-ups are values too: nothing is raised into the lifecycle."""

    attempt: Attempt
    started: bool = False
    """Part of the answer has gone to the client: it cannot be tried anew any more."""
    can_continue: bool = False
    """The text that the client has is at hand, so that another replica could go on from it."""
    retry_after: float | None = None
    """Seconds, where the replica asked for it."""
    finish_reason: str = ""


class Joined(Struct, frozen=True, gc=False):
    """How a flight along with another ended. ``outcome`` None: that one gave no answer to share, and nothing has gone
    to this one's client yet."""

    at: float
    outcome: Outcome | None
    status: int = 200
    """As in ``Entry``."""
    reason: str = ""
    finish_reason: str = ""
    prompt_tokens: int | None = None
    """The other's, as are the output tokens; None where unknown."""
    output_tokens: int | None = None


Event = Call | View | Woken | Claimed | Reply | Joined


class Closed(Struct, frozen=True, gc=False):
    """The end of a life: its one ledger entry, and the answer that the gateway itself must give, if any."""

    entry: Entry
    refusal: Refusal | None = None
