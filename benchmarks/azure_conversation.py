"""The Azure conversation trace through the gateway onto two local replicas, and what it cost.

    .venv/bin/python benchmarks/azure_conversation.py [--quick] [--json FILE] [--write docs/audit-azure.md]

The first 500 rows, lengths shrunk to a quarter, at a rate that two cores sustain. Needs the trace, which is not part of
this project: $WASTEGATE_TRACES names the folder that holds azure2023/AzureLLMInferenceTrace_conv.csv.

Bar: the replay is valid (95 % of the offered rate or more), every row is accounted for, each row that was answered is
in the ledger once and as finished, and requests + idle + overhead differ from price × up time by 0.1 % at most.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wastegate.store.entries import Ledger

ROOT = Path(__file__).parent.parent
TRACE = "azure2023/AzureLLMInferenceTrace_conv.csv"
TRACES = Path(os.environ.get("WASTEGATE_TRACES", ROOT.parent / "shared" / "traces"))
TOLERANCE = 0.001
READY_SECONDS = 180


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="40 rows, lengths shrunk to an eighth")
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the audit here, as an example")
    arguments = parser.parse_args()
    if not (TRACES / TRACE).is_file():
        print(f"skipped: {TRACES / TRACE} is not there (set WASTEGATE_TRACES)")
        print("bar: pass: skipped, the trace is not at hand")
        return 0
    rows, scale = (40, "1/8") if arguments.quick else (500, "1/4")
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch)
        replay = run(data, rows, scale, arguments.rate)
        ledger = data / "ledger.db"
        audit = json.loads(wastegate("audit", "--ledger", str(ledger), "--json"))["report"]
        text = wastegate("audit", "--ledger", str(ledger)).replace(str(ledger), "ledger.db")
        wrong = judge(replay, audit, saved(data), ledger)
    print(text)
    if arguments.write:
        arguments.write.write_text(page(text, replay, rows, scale, arguments.rate))
    bill = audit["bill"]
    summed = bill["requests"] + bill["idle"] + bill["overhead"]
    figures = (
        f"{replay['sent']} rows sent, {replay['ok']} answered, {replay['hung_up']} left,"
        f" {sum(replay['failed'].values())} failed; requests + idle + overhead = ${summed:.9f},"
        f" price x up time = ${bill['total']:.9f}"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"replay": replay, "audit": audit, "wrong": wrong}, indent=1))
    print(f"bar: {'fail: ' + '; '.join(wrong) if wrong else 'pass'}: {figures}")
    return 1 if wrong else 0


def run(data: Path, rows: int, scale: str, rate: float) -> dict[str, Any]:
    """One replay against a gateway of its own; the replay's report."""
    with gateway(data) as url:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "wastegate", "replay", str(TRACES / TRACE), "--url", url),
                *("--limit", str(rows), "--token-scale", scale, "--rate", str(rate)),
                *("--json", "--save", str(data / "rows.jsonl")),
            ],
            stdout=subprocess.PIPE,
            text=True,
            timeout=60 + 4 * rows / rate,
            check=False,
        )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@contextmanager
def gateway(data: Path) -> Iterator[str]:
    """`wastegate up` with two local replicas that are both ready; its address."""
    command = [sys.executable, "-m", "wastegate", "up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with (data / "gateway.log").open("w") as log:
        process = subprocess.Popen([*command, "--data", str(data)], stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        match = re.match(r"ready (\S+) admin", process.stdout.readline())
        if match is None:
            raise SystemExit(f"the gateway did not start: {(data / 'gateway.log').read_text()}")
        wait_ready(match[1])
        yield match[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def wait_ready(url: str) -> None:

    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url + "/ready", timeout=5) as answer:
                if json.load(answer)["ready"] == 2:
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"the two local replicas were not ready within {READY_SECONDS} s")


def wastegate(*arguments: str) -> str:
    environment = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-m", "wastegate", *arguments], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    return done.stdout


def saved(data: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (data / "rows.jsonl").read_text().splitlines()]


def judge(replay: dict[str, Any], audit: dict[str, Any], rows: list[dict[str, Any]], path: Path) -> list[str]:
    """What does not hold; nothing if all does."""
    wrong: list[str] = []
    if not replay["valid"]:
        wrong.append("the replay is not valid: " + ", ".join(replay["invalid"]))
    if replay["sent"] + sum(replay["skipped"].values()) + replay["not_reached"] != replay["read"]:
        wrong.append("rows read are not rows sent, skipped or not reached")
    if replay["ok"] + replay["hung_up"] + sum(replay["failed"].values()) != replay["sent"]:
        wrong.append("rows sent are not rows answered, left or failed")
    with Ledger(path, create=False) as ledger:
        outcomes: Counter[tuple[str, str]] = Counter()
        for row in rows:
            if row.get("request_id"):
                entry = ledger.entry(row["request_id"])
                outcomes[row["fate"], entry.outcome if entry is not None else "missing"] += 1
    wrong += [f"{n} rows answered but in the ledger as {kept}" for (row, kept), n in outcomes.items()
              if row == "ok" and kept != "finished"]  # fmt: skip
    if sum(outcomes.values()) < replay["ok"]:
        wrong.append(f"only {sum(outcomes.values())} rows carry the id of a call")
    bill = audit["bill"]
    off = abs(bill["requests"] + bill["idle"] + bill["overhead"] - bill["total"])
    if bill["total"] <= 0 or off > TOLERANCE * bill["total"]:
        wrong.append(f"the bill is off by ${off:.9f}")
    return wrong


def page(text: str, replay: dict[str, Any], rows: int, scale: str, rate: float) -> str:
    ttft, e2e = replay["ttft"], replay["e2e"]
    command = "wastegate replay AzureLLMInferenceTrace_conv.csv"
    return f"""# An audit of real traffic

The first {rows} calls of the conversation trace that Azure published in 2023 (CC-BY-4.0; it holds times and lengths, no
text), with lengths shrunk to {scale}, at {rate:g} requests a second, through the gateway onto two replicas of
SmolLM2-135M-Instruct, each on one core of a two-core machine at $0.085 an hour. Made by:

```console
$ .venv/bin/python benchmarks/azure_conversation.py --write docs/audit-azure.md
```

which runs `{command} --limit {rows} --token-scale {scale} --rate {rate:g}`
and then `wastegate audit`. The replay sent {replay["sent"]} of {replay["read"]} rows: {replay["ok"]} were answered,
{sum(replay["failed"].values())} failed; TTFT from the intended time: P50 {ttft["p50"]:.2f} s, P95 {ttft["p95"]:.2f} s;
E2E: P50 {e2e["p50"]:.2f} s, P95 {e2e["p95"]:.2f} s. The ten calls beyond these are the replay's own, to calibrate
prompt lengths.

```text
{text.strip()}
```
"""


if __name__ == "__main__":
    raise SystemExit(main())
