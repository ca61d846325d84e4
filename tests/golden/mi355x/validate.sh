#!/usr/bin/env bash
# Launch the server, benchmark it, and store the result beside the prediction.
# (header)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

name=planner-DIGEST
running() { [[ -n "$(docker ps --quiet --filter "name=^$name\$" 2>/dev/null)" ]]; }
result=$here/results/serve-DIGEST.json

child=
started=0
if [[ "${STOP:-0}" == 1 ]]; then started=1; fi # the server is this script's, though an earlier run started it
finish() {
  local status=$?
  trap - EXIT
  child=${child:-$(jobs -pr)} # a signal may come before the number is kept
  if [[ -n "$child" ]]; then
    kill "$child" 2>/dev/null || true
    wait "$child" || true
  fi
  if ((started)) && [[ "${KEEP:-0}" != 1 ]] && running; then
    docker logs "$name" >"$here/logs/server.log" 2>&1 || true
    docker stop "$name" >/dev/null || true
    echo "stopped $name (KEEP=1 leaves it running)"
  fi
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ -s "$result" && "${FORCE:-0}" != 1 ]]; then
  echo "already measured: $result (FORCE=1 measures again)"
  exit 0
fi

# In the background, so that a signal takes effect at once.
run() {
  local status=0
  "$@" &
  child=$!
  wait "$child" || status=$?
  child=
  return "$status"
}

if ! running; then
  run "$here/preflight.sh"
  started=1
  run "$here/launch.sh"
fi
run "$here/benchmark.sh"
echo "predicted: $here/plan.json"
echo "measured:  $result"
echo "compare:   planner validate $here"
