#!/usr/bin/env bash
# Benchmark the running server with exactly the predicted load.
# (header)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

name=planner-DIGEST
running() { [[ -n "$(docker ps --quiet --filter "name=^$name\$" 2>/dev/null)" ]]; }
container_port=8000
# The server's address: docker knows the port that it was started with.
address() { docker port "$name" "$container_port/tcp" 2>/dev/null; }
healthy() { curl --silent --fail --noproxy '*' --max-time 10 --output /dev/null "http://$(address)/health"; }
result=$here/results/serve-DIGEST.json
partial=$here/results/.partial-serve-DIGEST.json
num_prompts=320
seed=0
sent=$here/logs/sent # how often this server has received the load; launch.sh deletes it
results=/results # where the container sees this folder's results/
pid_file=$results/.client.pid

if [[ -s "$result" && "${FORCE:-0}" != 1 ]]; then
  echo "already measured: $result (FORCE=1 measures again)"
  exit 0
fi
if ! running; then
  echo "$name is not running; start it with: $here/launch.sh" >&2
  exit 1
fi
if ! healthy; then
  echo "$name does not answer yet; wait until $here/launch.sh says ready, or see: docker logs $name" >&2
  exit 1
fi

client=
finish() {
  local status=$?
  trap - EXIT
  client=${client:-$(jobs -pr)} # a signal may come before the number is kept
  if [[ -n "$client" ]]; then
    # docker exec passes no signal on: without this the client would go on sending
    docker exec "$name" sh -c 'kill "$(cat "$1")"' sh "$pid_file" || true
    kill "$client" 2>/dev/null || true
    echo "interrupted; run the same command to start the measurement again" >&2
  fi
  rm -f "$here/results/.client.pid"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# send COMMAND...: run a client beside the server. It runs in the background, so that a signal takes effect at once.
send() {
  local status=0
  docker exec --env NO_PROXY=127.0.0.1,localhost --env no_proxy=127.0.0.1,localhost "$name" \
    sh -c 'echo $$ >"$1" && shift && export OPENAI_API_KEY="${VLLM_API_KEY:-}" && exec "$@"' sh "$pid_file" "$@" &
  client=$!
  wait "$client" || status=$?
  client=
  return "$status"
}
# The prefix cache would answer prompts that this server has seen, so a repetition sends others, as many and as long.
repeats=$(cat "$sent" 2>/dev/null || echo 0)
again=()
if ((repeats > 0)); then again=(--seed "$((seed + repeats))"); fi
rm -f "$partial"
echo "warming up"
if ! send vllm bench serve \
    --host 127.0.0.1 \
    --port 8000 \
    --model amd/Llama-3.3-70B-Instruct-FP8-KV \
    --dataset-name random \
    --random-input-len 8192 \
    --random-output-len 64 \
    --max-concurrency 8 \
    --num-prompts 8 \
    --ignore-eos \
    --percentile-metrics ttft,tpot,itl,e2el \
    --seed 1000; then
  echo "the server refuses the benchmark's requests. See: docker logs $name" >&2
  exit 1
fi
echo "measuring"
printf '%s\n' "$((repeats + 1))" >"$sent"
status=0
send vllm bench serve \
    --host 127.0.0.1 \
    --port 8000 \
    --model amd/Llama-3.3-70B-Instruct-FP8-KV \
    --dataset-name random \
    --random-input-len 8192 \
    --random-output-len 1024 \
    --max-concurrency 64 \
    --num-prompts 320 \
    --ignore-eos \
    --percentile-metrics ttft,tpot,itl,e2el \
    --seed 0 \
    "${again[@]}" \
    --save-result --result-dir "$results" --result-filename .partial-serve-DIGEST.json || status=$?
if ((status != 0)); then
  echo "the benchmark ended with status $status" >&2
  exit "$status"
fi

completed=$(grep -o '"completed": *[0-9]*' "$partial" | grep -o '[0-9]*$' || true)
if [[ "$completed" != "$num_prompts" ]]; then
  echo "${completed:-none} of $num_prompts requests completed; no result is kept. See: docker logs $name, $partial" >&2
  exit 1
fi
mv -f "$partial" "$result"
docker logs "$name" >"$here/logs/server.log" 2>&1 || true # planner validate reads the use of the cache in it
echo "measured: $result"
