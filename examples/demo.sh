#!/usr/bin/env bash
# From nothing to a cost report: fetch a small model, start a gateway with two replicas on this machine's CPU, send
# recorded traffic through it, print what each request cost, stop everything. `make demo` runs it.
#
#   examples/demo.sh [TRACE] [more arguments for wastegate replay]
set -euo pipefail

model=smollm2-135m-instruct
data=$(mktemp -d "${TMPDIR:-/tmp}/wastegate-demo.XXXXXX")
log=$data/gateway.log
gateway=

stop() {
  if [[ -n $gateway ]] && kill -0 "$gateway" 2>/dev/null; then
    kill -TERM "$gateway"
    wait "$gateway" || true
  fi
}
trap stop EXIT
trap 'exit 130' INT TERM

# Success once both replicas answer. No curl: a bare machine may not have it.
replicas_ready() {
  python - "$url/ready" <<'PYTHON'
import json, sys, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=2) as answer:
        sys.exit(json.load(answer)["ready"] < 2)
except OSError:
    sys.exit(1)
PYTHON
}

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "1. The model: $model"
wastegate models pull "$model"

say "2. A gateway and two local replicas"
# Port 0 takes any free port, so that the demo never meets another server.
wastegate up --listen 127.0.0.1:0 --admin 127.0.0.1:0 --data "$data" >"$data/ready" 2>"$log" &
gateway=$!
url=
for ((tries = 0; tries < 1200; tries++)); do
  kill -0 "$gateway" 2>/dev/null || { echo "the gateway did not start; its log:" >&2; cat "$log" >&2; exit 1; }
  [[ -n $url ]] || url=$(sed -n 's/^ready \(http[^ ]*\) .*/\1/p' "$data/ready")
  # Both replicas, so that the traffic has somewhere to go from its first call on.
  if [[ -n $url ]] && replicas_ready; then break; fi
  sleep 0.1
done
echo "listening on $url"

say "3. Traffic: three tenants of a shop's assistant"
trace=${1:-sample}
# Exit code 1 says that this machine did not keep up with the traffic's own times: what ran can be audited all the same.
wastegate replay "$trace" --url "$url" --model "$model" "${@:2}" || [[ $? -eq 1 ]]

say "4. Stop: streams finish, the ledger is written"
stop
gateway=

say "5. What it cost"
wastegate audit --ledger "$data/ledger.db"

say "The ledger stays at $data/ledger.db. Look closer, for example:"
echo "  wastegate audit --ledger $data/ledger.db --json"
echo "  wastegate explain --ledger $data/ledger.db ID"
