"""argv → a step, a service or a tool. No logic: each command reads its flags, hands values down and prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from wastegate import __version__
from wastegate.load import sweep_flags
from wastegate.local import flags
from wastegate.steps import whatif_flags

if TYPE_CHECKING:
    from wastegate.load.imports import Options
    from wastegate.local.models import Library
    from wastegate.steps.audit import Where

Command = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 a check or bar failed, 2 bad usage or input, 130 interrupted."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    command: Command | None = getattr(arguments, "run", None)
    if command is None:
        parser.print_help()
        return 2
    try:
        return command(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `wastegate audit | head` is not an error
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wastegate", description="What every LLM request costs, and what cuts it.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"wastegate {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _up_parser(commands)
    flags.engine(commands, _engine)
    flags.models(commands, _models)
    sweep_flags.bench(commands, _bench)
    _replay_parser(commands)
    _audit_parser(commands)
    _import_parser(commands)
    _explain_parser(commands)
    _replicas_parser(commands)
    _launch_parser(commands)
    _report_parser(commands)
    _export_parser(commands)
    whatif_flags.simulate(commands, _simulate)
    return parser


Commands = argparse._SubParsersAction


class _Help(argparse.RawDescriptionHelpFormatter):
    """Examples keep their lines; a description is wrapped to the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def _up_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "up",
        help="run the gateway",
        description="Run the gateway in front of the replicas that wastegate.toml names; where it names none, start "
        "local ones on this machine's CPU. Any OpenAI client can use it. Every call is written to the ledger that "
        "`wastegate audit` reads. Prints 'ready URL admin URL' once it listens; on Ctrl-C or SIGTERM it takes no more "
        "calls, lets streams finish, and stops what it started. On SIGHUP it reads its configuration anew.",
        epilog="examples:\n"
        "  wastegate up                                   two local replicas of the small model, on port 8080\n"
        "  wastegate up --config prod.toml                your replicas, prices, routes and timers\n"
        "  curl localhost:8080/v1/models                  what is served\n"
        "  curl localhost:8081/admin/state                the fleet, now\n",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", type=Path, help="the configuration (default: ./wastegate.toml if there is one)")
    add("--listen", help="address for clients, host:port (default: 127.0.0.1:8080)")
    add("--admin", help="address for health, metrics and state (default: 127.0.0.1:8081)")
    add("--workers", type=int, help="processes that serve clients (default: 1)")
    add("--data", type=Path, help="where ledger, journal and logs are kept (default: your data folder)")
    add("--check", action="store_true", help="only check the configuration")
    add("--verbose", action="store_true", help="log more")
    parser.set_defaults(run=_up)


def _up(arguments: argparse.Namespace) -> int:
    import logging

    from wastegate import site
    from wastegate.gateway import app

    logging.basicConfig(
        level=logging.DEBUG if arguments.verbose else logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )

    def load(path: Path | None, again: bool = False) -> site.Site:
        given = arguments
        return site.load(
            path, listen=given.listen, admin=given.admin, data=given.data, workers=given.workers, again=again
        )

    try:
        here = load(arguments.config)
    except site.ConfigError as error:
        print(f"wastegate up: {error}", file=sys.stderr)
        return 2
    if arguments.check:
        print(f"{here.source or 'defaults'}: ok; {len(here.gateway.replicas) or here.gateway.local.replicas} replicas")
        return 0
    source = Path(here.source) if here.source else arguments.config
    return app.run(here.gateway, lambda: load(source, again=True).gateway)


def _engine(arguments: argparse.Namespace) -> int:
    from wastegate.local.child import LoopError
    from wastegate.local.gguf import GgufError
    from wastegate.local.lifeline import die_with_parent
    from wastegate.local.models import ModelError
    from wastegate.local.server import serve
    from wastegate.local.settings import SettingError, configure, options_of
    from wastegate.local.tokenizer import TokenizerError

    if arguments.die_with_parent:
        die_with_parent()
    try:
        return serve(configure(options_of(arguments), _fetch(arguments.model)))
    except (ModelError, SettingError, GgufError, TokenizerError, LoopError, OSError) as error:
        print(f"wastegate engine: {error}", file=sys.stderr)
        return 2


def _library() -> Library:
    from wastegate import site
    from wastegate.local.download import Network
    from wastegate.local.models import HUB, Library

    return Library(site.cache_dir(), network=Network(certificates=site.certificates()), hub=site.model_hub() or HUB)


def _fetch(name: str) -> Path:
    """A model's file; where it must be fetched, with a progress bar on stderr."""
    library = _library()
    if (found := library.find(name)) is not None:
        return found
    from wastegate.local.progress import bar

    with bar(f"fetching {name}") as progress:
        return library.pull(name, progress)


def _models(arguments: argparse.Namespace) -> int:
    from wastegate.local.models import ModelError

    try:
        if arguments.action == "pull":
            print(_fetch(arguments.model))
        elif arguments.action == "rm":
            freed = _library().remove(arguments.model)
            print(f"removed {arguments.model}: {freed / 1e6:.1f} MB")
        else:
            print(_library().table(as_json=arguments.json))
    except (ModelError, OSError) as error:
        print(f"wastegate models {arguments.action}: {error}", file=sys.stderr)
        return 2
    return 0


def _replay_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "replay",
        help="send a trace's traffic at its own times, and measure it",
        description="Send the requests of a trace open-loop: each at its own time, whatever became of those before. "
        "Latency counts from the intended time. A run that sent under 95 % of the offered rate is marked invalid.",
        epilog="exit codes: 0 valid, 1 not valid, 2 bad usage or input, 130 interrupted (the report is printed)\n"
        "\nexamples:\n"
        "  wastegate replay traffic.jsonl --url http://127.0.0.1:8080\n"
        "  wastegate replay azure.csv --url http://127.0.0.1:8080 --limit 500 --rate 2 --token-scale 1/8\n",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("trace", type=Path, help="Azure CSV, Mooncake JSONL, messages, an export; 'sample': our own")
    parser.add_argument("--url", required=True, help="the server, such as http://127.0.0.1:8080")
    parser.add_argument("--format", choices=("azure", "mooncake", "messages", "export"), help="default: by content")
    parser.add_argument("--model", default="", help="default: the only one that the server lists")
    pace = parser.add_argument_group("pace")
    pace.add_argument("--speed", type=float, help="2 sends in half the trace's time")
    pace.add_argument("--rate", type=float, help="stretch to this mean rate, requests per second")
    pace.add_argument("--limit", type=int, help="only the first N rows")
    pace.add_argument("--duration", type=float, help="only the first seconds of the run")
    pace.add_argument("--seed", type=int, default=0, help="another seed makes other prompts (default 0)")
    pace.add_argument("--token-scale", type=Fraction, default=Fraction(1), help="such as 1/16: shrink all lengths")
    load = parser.add_argument_group("requests")
    load.add_argument("--endpoint", choices=("auto", "chat", "completions"), default="auto", help="for made prompts")
    load.add_argument("--on-misfit", choices=("clip", "skip"), default="clip", help="rows beyond the model's context")
    load.add_argument(
        "--ignore-eos", choices=("auto", "always", "never"), default="auto", help="auto: for lengths only"
    )
    load.add_argument("--temperature", type=float, help="default: the row's, or the server's")
    load.add_argument("--no-stream", action="store_true", help="ask for whole answers")
    load.add_argument("--max-inflight", type=int, default=512, help="safety bound (default 512)")
    load.add_argument("--timeout", type=float, default=600.0, help="seconds a request may take (default 600)")
    load.add_argument("--drain", type=float, default=10.0, help="seconds to wait for answers after Ctrl-C (default 10)")
    load.add_argument("--fresh-connections", action="store_true", help="a new connection for each request")
    load.add_argument("--api-key", default="", help="sent as a bearer token")
    load.add_argument("--api-key-env", metavar="NAME", help="the same, from an environment variable")
    load.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="may be repeated")
    load.add_argument("--tenant", default="", help="for rows that name none")
    load.add_argument("--tenant-header", default="x-wastegate-tenant", metavar="NAME", help="empty: send none")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print the report as JSON")
    output.add_argument("--save", type=Path, metavar="FILE", help="write one JSON line a row")
    output.add_argument("--no-progress", action="store_true")
    parser.set_defaults(run=_replay)


def _replay(arguments: argparse.Namespace) -> int:
    import msgspec
    import uvloop
    from rich.console import Console

    from wastegate.load.display import table
    from wastegate.load.replay import Replay
    from wastegate.load.session import EarlyStopError, config_from, exit_code, save, watched
    from wastegate.load.target import TargetError

    try:
        replay = Replay(config_from(arguments, os.environ))
        console = None if arguments.no_progress else Console(stderr=True)
        done = uvloop.run(watched(replay, console))
        if arguments.save is not None:
            save(done.results, arguments.save)
    except (ValueError, TargetError, OSError, EarlyStopError) as error:
        print(f"wastegate replay: {error}", file=sys.stderr)
        return 130 if isinstance(error, EarlyStopError) else 2
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(done.report)).decode())
    else:
        Console().print(table(done.report))
    return exit_code(done.report)


def _bench(arguments: argparse.Namespace) -> int:
    import uvloop
    from rich.console import Console

    from wastegate.load import sweep_command, sweep_view
    from wastegate.load.paired import PairedError
    from wastegate.load.sweep_target import EngineError

    console = None if arguments.no_progress else Console(stderr=True)
    try:
        config, key = sweep_command.config_from(arguments), sweep_command.key_from(arguments, os.environ)
        report = uvloop.run(sweep_command.watched(config, console, key))
        sweep_command.save(report, arguments)
    except (ValueError, OSError, EngineError, PairedError) as error:
        print(f"wastegate bench: {error}", file=sys.stderr)
        return 2
    Console().print(sweep_view.table(report))
    return sweep_command.exit_code(report)


def _ledger_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ledger", type=Path, metavar="PATH", help="the ledger (default: the gateway's own)")
    parser.add_argument("--config", type=Path, help="the gateway's configuration, which says where its ledger is")
    parser.add_argument("--json", action="store_true", help="print as JSON, in dollars, seconds and tokens")


def _audit_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "audit",
        help="where the money went: the bill, and what each request cost",
        description="Read the ledger and show the bill (requests, idle, overhead, waste), what requests cost by route, "
        "model, tenant, class and tag, latency, and how much of it is a guess. docs/costs.md tells how it is counted.",
        epilog="exit codes: 0 shown, 1 the figures do not add up, 2 no ledger or bad usage\n"
        "\nexamples:\n"
        "  wastegate audit                          everything\n"
        "  wastegate audit --since 1h               the last hour\n"
        "  wastegate audit --since 7d --html a.html  the same, and a page with charts\n"
        "  wastegate audit --since 2026-05-04 --until 2026-05-05T12:00 --json\n"
        "  wastegate audit --from litellm spend.jsonl --price-per-hour 2.5      another tool's records\n"
        "  wastegate audit --from inference-perf reports/                       its load test's stages\n",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--since", metavar="WHEN", help="90s, 15m, 1h, 7d, 2w ago, or a date or time (default: ever)")
    parser.add_argument("--until", metavar="WHEN", help="the same, for the end (default: now)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write it as one page with charts")
    _ledger_flags(parser)
    _foreign_flags(parser.add_argument_group("another tool's records, in place of a ledger")).add_argument(
        "--from", dest="foreign", nargs="+", metavar=("KIND", "FILE"), help="vllm, otlp, litellm, inference-perf"
    )
    parser.set_defaults(run=_audit)


def _foreign_flags(group: argparse._ArgumentGroup) -> argparse._ArgumentGroup:
    group.add_argument("--price-per-hour", type=float, metavar="DOLLARS", help="of each replica that they ran on")
    group.add_argument("--replica", default="", metavar="NAME", help="where all ran (default: as the files say)")
    group.add_argument("--model", default="", metavar="NAME", help="the model of all (default: as the files say)")
    group.add_argument("--start", metavar="WHEN", help="when the first call came, for files without dates")
    return group


def _foreign(arguments: argparse.Namespace) -> Options:
    """What is said of another tool's records. Raises ValueError."""
    import time

    from wastegate.load.imports import Options, price_of
    from wastegate.steps.window import parse_when

    start = parse_when(arguments.start, time.time()) if arguments.start else None
    return Options(arguments.replica, arguments.model, start, price_of(arguments.price_per_hour))


def _audit(arguments: argparse.Namespace) -> int:
    import sqlite3
    import time

    from wastegate.steps import audit, audit_html, audit_view, foreign
    from wastegate.steps.window import parse_window

    done = None
    try:
        window = parse_window(arguments.since, arguments.until, time.time())
        if arguments.foreign and arguments.foreign[0] == "inference-perf":
            return _audit_stages(arguments)
        if arguments.foreign:
            kind, *files = arguments.foreign
            options, paths = _foreign(arguments), [Path(file) for file in files]
            done, report = foreign.audited(kind, paths, options, *window, arguments.html, not arguments.json)
        elif arguments.html is None:
            report = audit.run(_where(arguments), *window)
        else:
            report = audit_html.write(arguments.html, _where(arguments), *window)
    except (ValueError, OSError, sqlite3.Error) as error:
        print(f"wastegate audit: {error}", file=sys.stderr)
        return 2
    verdict = audit.judge(report)
    if arguments.json:
        _print_json({"report": report, "verdict": verdict, **({"import": done} if done is not None else {})})
    else:
        from rich.console import Console

        print(*foreign.said(done) if done is not None else (), sep="\n", end="\n" if done is not None else "")
        Console().print(audit_view.view(report, verdict))
    return 1 if verdict.ruling == "fail" else 0


def _audit_stages(arguments: argparse.Namespace) -> int:
    """inference-perf's reports of stages. Raises ValueError and OSError."""
    from wastegate.steps import loadtest, loadtest_view

    if arguments.html is not None or arguments.since or arguments.until:
        raise ValueError("reports of stages have no calls and no dates: leave out --html, --since and --until")
    report = loadtest.run([Path(path) for path in arguments.foreign[1:]], _foreign(arguments).price)
    verdict = loadtest.judge(report)
    if arguments.json:
        _print_json({"report": report, "verdict": verdict})
    else:
        from rich.console import Console

        Console().print(loadtest_view.view(report, verdict))
    return 0


def _import_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "import",
        help="calls that other tools recorded, into a ledger",
        description="Read vLLM's per-request metrics or logs, OTLP spans in JSON, LiteLLM's spend logs or "
        "inference-perf's record of requests into a ledger, so that audit, report and export can be asked of them. "
        "Every row is accounted for; what could not be read is told with its line. docs/reports.md tells what each "
        "field becomes.",
        epilog="exit codes: 0 all read, 1 some rows could not be read, 2 bad usage or no such file\n"
        "\nexamples:\n"
        "  wastegate import litellm spend.jsonl --into old.db --price-per-hour 2.5\n"
        "  wastegate import otlp traces.json --into old.db && wastegate audit --ledger old.db\n",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("kind", choices=("vllm", "otlp", "litellm", "inference-perf"))
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="also packed, as .gz")
    parser.add_argument("--into", type=Path, required=True, metavar="LEDGER", help="made if it is not there")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    _foreign_flags(parser.add_argument_group("what the files do not say"))
    parser.set_defaults(run=_import)


def _import(arguments: argparse.Namespace) -> int:
    import sqlite3

    from wastegate.steps import foreign

    try:
        options = _foreign(arguments)
        done = foreign.take_in(arguments.kind, arguments.files, arguments.into, options, not arguments.json)
    except (ValueError, OSError, sqlite3.Error) as error:
        print(f"wastegate import: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        _print_json(done)
    else:
        print(*foreign.said(done), sep="\n")
    return 1 if foreign.faults(done) else 0


def _explain_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "explain",
        help="one call: what happened to it, and each part of its cost",
        description="Show one call's trail of decisions, times, tokens, attempts and cost. What is a guess is marked.",
        epilog="exit codes: 0 shown, 2 no such call or no ledger\n"
        "\nexample:\n"
        "  wastegate explain 01J9ZK      the x-request-id of a response, or its beginning\n",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("id", help="the call's id (x-request-id in its response), or its beginning if no other has it")
    _ledger_flags(parser)
    parser.set_defaults(run=_explain)


def _explain(arguments: argparse.Namespace) -> int:
    import sqlite3

    from wastegate.steps import explain, explain_view

    try:
        explanation = explain.explain(_where(arguments), arguments.id)
    except KeyError as error:
        print(f"wastegate explain: {error.args[0]}", file=sys.stderr)
        return 2
    except (ValueError, OSError, sqlite3.Error) as error:
        print(f"wastegate explain: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        _print_json(explanation)
    else:
        from rich.console import Console

        Console().print(explain_view.view(explanation))
    return 0


def _report_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "report",
        help="the week's bill in plain words, for those who pay it",
        description="The bill of the last seven days, what changed against the seven before, what drove the change, "
        "and what the next week may cost, with an interval, or why nobody can say. docs/reports.md tells how.",
        epilog="exit codes: 0 shown, 1 the figures do not add up, 2 no ledger or bad usage\n"
        "\nexamples:\n"
        "  wastegate report --weekly                        up to now\n"
        "  wastegate report --weekly --until 2026-05-04     the week before that day\n"
        "  wastegate report --weekly --html week.html       and as a page to pass on\n",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--weekly", action="store_true", required=True, help="of a week: the only kind there is")
    parser.add_argument("--until", metavar="WHEN", default="now", help="the week's end: 1d ago, a date or time, now")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write it as one page")
    _ledger_flags(parser)
    parser.set_defaults(run=_report)


def _report(arguments: argparse.Namespace) -> int:
    import sqlite3
    import time

    from wastegate.steps import page, weekly, weekly_view
    from wastegate.steps.window import parse_when

    try:
        report = weekly.run(_where(arguments), parse_when(arguments.until, time.time()))
        verdict = weekly.judge(report)
        if arguments.html is not None:
            page.write(arguments.html, weekly_view.html(report, verdict))
    except (ValueError, OSError, sqlite3.Error) as error:
        print(f"wastegate report: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        _print_json({"report": report, "verdict": verdict})
    else:
        from rich.console import Console

        Console().print(weekly_view.view(report, verdict))
    return 1 if verdict.ruling == "fail" else 0


def _export_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "export",
        help="calls, attempts and charges as Parquet, CSV or JSON lines",
        description="Write every call that touches the window, its attempts and what they cost, and the replicas' "
        "bills: entries, attempts and replicas. JSON lines hold the attempts within their call, and `wastegate replay` "
        "reads them. docs/reports.md tells every column. Parquet needs the extra: pip install 'wastegate[export]'.",
        epilog="exit codes: 0 written, 2 no ledger or bad usage\n"
        "\nexamples:\n"
        "  wastegate export --format parquet --to calls/\n"
        "  wastegate export --format jsonl --to calls/ --since 7d\n"
        "  wastegate replay calls/entries.jsonl --url http://127.0.0.1:8080\n",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--format", choices=("parquet", "csv", "jsonl"), required=True)
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="made if it is not there")
    parser.add_argument("--since", metavar="WHEN", help="90s, 15m, 1h, 7d, 2w ago, or a date or time (default: ever)")
    parser.add_argument("--until", metavar="WHEN", help="the same, for the end (default: now)")
    parser.add_argument("--no-progress", action="store_true")
    _ledger_flags(parser)
    parser.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    import sqlite3
    import time

    from wastegate.steps.window import parse_window
    from wastegate.store.export_files import MissingPackageError, export

    try:
        window = parse_window(arguments.since, arguments.until, time.time())
        done = export(_where(arguments).ledger, *window, arguments.to, arguments.format, not arguments.no_progress)
    except (ValueError, OSError, sqlite3.Error, MissingPackageError) as error:
        print(f"wastegate export: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        _print_json(done)
    else:
        print(f"{done.calls:,} calls, {done.attempts:,} attempts: {', '.join(done.files)}")
    return 0


def _replicas_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "replicas",
        help="the replicas of a running gateway: their batch, queue, cache and speed",
        description="Ask a running gateway what its replicas' engines say of themselves. What an engine does not say "
        "is shown as –. Below the table: what is missing, has another name, or does not run as it was asked to.",
        epilog="exit codes: 0 shown, 1 a replica gives no signals, 2 no gateway answers or bad usage\n"
        "\nexamples:\n"
        "  wastegate replicas                                that of ./wastegate.toml, or the default one\n"
        "  wastegate replicas --admin http://10.0.0.7:8081   another one\n",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--admin", metavar="URL", help="the operator's address (default: what the configuration says)")
    parser.add_argument("--config", type=Path, help="the gateway's configuration: its address and token")
    parser.add_argument("--json", action="store_true", help="as JSON: seconds, tokens, shares from 0 to 1")
    parser.set_defaults(run=_replicas)


def _replicas(arguments: argparse.Namespace) -> int:
    from wastegate import site
    from wastegate.steps import replicas

    try:
        address, token = site.admin_of(arguments.config)
        state = replicas.fetch(arguments.admin or address, token)
    except ValueError as error:
        print(f"wastegate replicas: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        _print_json(state.replicas)
    else:
        from rich.console import Console

        Console().print(replicas.view(state))
    return 1 if any(replica.seen.signals is None for replica in state.replicas) else 0


def _launch_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "launch",
        help="the command that starts vLLM, SGLang, llama.cpp or the local engine, printed or run",
        description="Print the command that starts an engine with what it takes to be measured: metrics, cached tokens "
        "in its answers, an address that only this machine reaches. --exec runs it, --check asks a running engine "
        "whether it really runs so. A flag that guides still name, but no engine has, is told by its present name.",
        epilog="exit codes: 0 shown, 1 --check found a difference, 2 bad usage or an outdated flag\n"
        "\nexamples:\n"
        "  wastegate launch vllm --help                            what vLLM can be started with\n"
        "  wastegate launch vllm MODEL --context 8192 --speculation ngram\n"
        "  wastegate launch vllm MODEL --context 8192 --check http://127.0.0.1:8000\n"
        "  wastegate launch llamacpp model.gguf --sequences 8 --exec\n",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("engine", choices=("vllm", "sglang", "llamacpp", "local"))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its model and settings: ENGINE --help names them")
    parser.set_defaults(run=_launch)


def _launch(arguments: argparse.Namespace) -> int:
    from wastegate.steps import launch

    return launch.main(arguments.engine, arguments.arguments)


def _simulate(arguments: argparse.Namespace) -> int:
    from wastegate.steps.whatif_command import command

    return command(arguments)


def _where(arguments: argparse.Namespace) -> Where:
    """Where the ledger is: named, or the configured gateway's. Raises ValueError for a wrong configuration."""
    from wastegate.steps.audit import At

    if arguments.ledger is not None:
        return At(arguments.ledger)
    from wastegate import site

    return At(site.ledger_of(arguments.config))


def _print_json(value: object) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value)).decode())


if __name__ == "__main__":
    raise SystemExit(main())
