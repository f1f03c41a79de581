"""The flags of `wastegate engine` and `wastegate models`, and the help that teaches them. Nothing is imported that
would slow `wastegate --help` down."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

Run = Callable[[argparse.Namespace], int]

_EXAMPLES = """\
examples:
  wastegate engine                               the small model that wastegate knows, on port 8001
  wastegate engine --model ./llama.gguf --cap 8  a file of yours, at most eight sequences at once
  wastegate engine --cores 0 --port 8001         one of two replicas, each on a core of its own
  wastegate engine --cores 1 --port 8002         the other

while it runs:
  curl localhost:8001/admin/limits                              what may run and wait
  curl -X PUT localhost:8001/admin/limits -d '{"cap": 16}'      change it
  curl -X PUT localhost:8001/admin/caps -d '{"policy": "cost_aware"}'  let the cap follow the load
  curl localhost:8001/admin/work                                what its steps cost, measured
"""


def engine(commands: Any, run: Run) -> None:
    """Add `wastegate engine` to argparse's ``commands``."""
    parser = commands.add_parser(
        "engine",
        help="serve a model on this machine's CPU",
        description="Serve a model on this machine's CPU, with OpenAI's routes. A model that wastegate knows is\n"
        "fetched first where it is not here yet. Prints 'ready URL' once it serves. Ctrl-C or SIGTERM ends\n"
        "it, after the calls that run.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    _serving(parser.add_argument_group("what is served, and where"))
    _limits(parser.add_argument_group("how much at once"))
    _machine(parser.add_argument_group("how the machine is used"))


def _serving(group: Any) -> None:
    add = group.add_argument
    add("--model", default="smollm2-135m-instruct", metavar="MODEL",
        help="a name from `wastegate models list`, a .gguf file, or hf:owner/repo/file.gguf "
        "(default: %(default)s)")  # fmt: skip
    add("--name", default="", help="what the model is called over HTTP (default: the name it has here)")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8001, help="port to listen on; 0 takes a free one (default: %(default)s)")
    add("--admin-token", default="", metavar="TOKEN",
        help="/admin wants 'Authorization: Bearer TOKEN', and answers other machines too; without it, "
        "only this one")  # fmt: skip
    add("--drain", type=float, default=30.0, metavar="SECONDS",
        help="time that running calls get at the end (default: %(default)s)")  # fmt: skip
    add("--die-with-parent", action="store_true",
        help="end as soon as the process that started this one ends, however it ends (Linux)")  # fmt: skip


def _limits(group: Any) -> None:
    add = group.add_argument
    add("--cap", type=int, default=32, metavar="N",
        help="sequences that run at once; a call with n answers counts n (default: %(default)s)")  # fmt: skip
    add("--cap-policy", choices=("fixed", "cost_aware", "gradient", "article"), default="fixed",
        help="how the cap follows the load, from --cap on: cost_aware grows it while calls wait and shrinks it when "
        "running ones are hurt; gradient goes to where a token costs least (default: %(default)s)")  # fmt: skip
    add("--cap-min", type=int, default=2, metavar="N", help="the cap goes no lower (default: %(default)s)")
    add("--cap-max", type=int, default=64, metavar="N", help="nor higher (default: %(default)s)")
    add("--tpot-slo", type=float, default=0.2, metavar="SECONDS",
        help="time for a token, after the first, over which running calls are hurt (default: %(default)s)")  # fmt: skip
    add("--queue", type=int, default=256, metavar="N",
        help="sequences that may wait; beyond it a call gets 503 (default: %(default)s)")  # fmt: skip
    add("--context", type=int, default=0, metavar="TOKENS",
        help="prompt and answer together (default: the model's own, as far as the KV cache holds it)")  # fmt: skip
    add("--kv-gb", type=float, default=1.0, metavar="GIB", help="size of the KV cache (default: %(default)s)")
    add("--step-tokens", type=int, default=256, metavar="TOKENS",
        help="prompt tokens in one step at most; longer prompts are computed in parts, between which others go on "
        "(default: %(default)s)")  # fmt: skip


def _machine(group: Any) -> None:
    add = group.add_argument
    add("--cores", default="", metavar="LIST",
        help="cores to compute on, as in 0,2-3 (default: all). Engines side by side need cores of their own: on the "
        "same ones they halve each other")  # fmt: skip
    add("--threads", type=int, default=0, metavar="N", help="threads that compute (default: one for each core)")
    add("--hint", choices=("latency", "throughput", "none"), default="latency",
        help="what the runtime is tuned for (default: %(default)s)")  # fmt: skip
    add("--kv-precision", choices=("u8", "f16", "bf16", "f32"), default="u8",
        help="what KV is kept in (default: %(default)s)")  # fmt: skip
    add("--no-prefix-caching", action="store_true", help="compute every prompt from its first token")


def models(commands: Any, run: Run) -> None:
    """Add `wastegate models` to argparse's ``commands``."""
    parser = commands.add_parser(
        "models",
        help="list, fetch or remove the local engine's models",
        description="The local engine's models. They lie in your cache folder; WASTEGATE_CACHE moves it.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    listing = actions.add_parser("list", help="what is known, and what is here", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="as JSON, sizes in bytes")
    for name, what in (("pull", "fetch a model"), ("rm", "remove a model from the cache")):
        action = actions.add_parser(name, help=what, allow_abbrev=False)
        action.add_argument("model", metavar="MODEL", help="a name from the list, or hf:owner/repo/file.gguf")
    parser.set_defaults(run=run)
