"""What a client asked, reduced to what policy needs. The prompt itself never enters here."""

from __future__ import annotations

from msgspec import Struct

# Bytes of UTF-8 text a token stands for when no tokenizer is at hand: English prose under today's
# byte-pair vocabularies. A count made with it is always marked "estimated".
BYTES_PER_TOKEN = 4


class Divergence(Struct, frozen=True, gc=False):
    """Where a prompt parts from the one before it on its route, and by what kind of thing. Never what it says."""

    at: int
    """Bytes from the prompt's start that the two share."""
    by: str
    """A kind of ``core.divergence``: "uuid", "time", "counter", …; "text" for anything else."""
    again: int = 0
    """Bytes behind it that are the same once more: they could have come from a cache, if it did not stand there."""


class Stored(Struct, frozen=True, gc=False):
    """An answer that is at hand before anything is decided: somebody asked just this ``age`` seconds before ``at``."""

    call: str
    """The id of the call that it was made for."""
    at: float
    age: float
    finish_reason: str = ""
    prompt_tokens: int | None = None
    """Counted then, as were the output tokens: what need not be computed again. None where unknown."""
    output_tokens: int | None = None


class Call(Struct, frozen=True, gc=False):
    """One request as it arrived.

    Times are seconds since the Unix epoch, on the gateway's own clock. ``prompt_tokens`` is an
    estimate until an engine reports the real count.
    """

    id: str
    """Ours, unique. The client's own id is kept in ``client_id`` and never trusted as unique."""
    arrived: float
    route: str
    path: str
    model: str
    tenant: str = "default"
    stream: bool = False
    wants_usage: bool = False
    """The client itself asked for the usage chunk of a stream; otherwise it is hidden again."""
    prompt_bytes: int = 0
    """Of the prompt as it stands in the body, JSON and all."""
    prompt_tokens: int = 0
    model_runs: bool = True
    """False for what an engine does without its model, such as counting tokens: no token is spent on it."""
    blocks: bytes = b""
    """The prompt's whole blocks as chained 64-bit hashes, 8 bytes each: what prompts share, not what they say."""
    scope: int = 0
    """Prompts share KV only within one scope: a hash of the client's ``cache_salt`` and of its tools, which chat
    templates put before the messages. 0 where there are neither."""
    likeness: int = 0
    """The prompt's SimHash: prompts much alike differ in few of its bits. 0 where nobody asks for it."""
    divergence: Divergence | None = None
    """Known only where its route is watched for it."""
    twin: bytes = b""
    """What is the same for two calls only if either's answer will do for both; empty where it is not to be shared."""
    stored: Stored | None = None
    """Its answer, where the answer cache has it: it is then not sent anywhere."""
    max_tokens: int | None = None
    n: int = 1
    deterministic: bool = False
    """Temperature 0 (or a fixed seed): the same call gives the same answer on any replica."""
    may_continue: bool = False
    """A stream that breaks may go on elsewhere: the prompt and the text so far are sent to another replica."""
    priority: int = 0
    """Lower runs first, as in vLLM."""
    tags: tuple[tuple[str, str], ...] = ()
    client_id: str = ""
    traceparent: str = ""


def length_class(prompt_tokens: int, output_tokens: int) -> str:
    """The cost label by size: "short", "medium" or "long".

    "short" is the source article's lowest risk class (input under 256, output under 512 tokens).
    """
    if prompt_tokens < 256 and output_tokens < 512:
        return "short"
    if prompt_tokens < 2048 and output_tokens < 1024:
        return "medium"
    return "long"
