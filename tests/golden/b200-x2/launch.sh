#!/usr/bin/env bash
# Launch the planned server in a container and wait until it answers.
#
# nvidia/Llama-3.3-70B-Instruct-FP4 on 2 x NVIDIA B200 SXM 180GB, vLLM 0.14.0
# goal: max-throughput; plan 17a60324536b; written by planner 0.0.0
# by: planner recommend --goal max-throughput
#
# predicted for 640 requests of 1024 input and 1024 output tokens, at most 128 in flight:
#   TTFT mean 5,210 ms (4,100 to 6,700)
#   output 1,020 tok/s (860 to 1,210)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

name=planner-17a60324536b
running() { [[ -n "$(docker ps --quiet --filter "name=^$name\$" 2>/dev/null)" ]]; }
container_port=8000
# The server's address: docker knows the port that it was started with.
address() { docker port "$name" "$container_port/tcp" 2>/dev/null; }
healthy() { curl --silent --fail --noproxy '*' --max-time 10 --output /dev/null "http://$(address)/health"; }
image=vllm/vllm-openai:v0.14.0
port=${PORT:-8000}
models=${HF_HOME:-$HOME/.cache/huggingface}
if [[ "$models" != /* ]]; then models=$PWD/$models; fi
start_timeout_s=${START_TIMEOUT_S:-3600}
log=$here/logs/server.log
id_file=$here/logs/container.id
results=/results # where the container sees this folder's results/
cache=/huggingface # where the container sees the folder of the models
# The first GPUs that DEVICE or the vendor's own variable names, as any program of this machine takes them.
need_gpus=2
asked=${DEVICE:-${CUDA_VISIBLE_DEVICES:-}}
first=0,1
IFS=, read -r -a chosen <<<"${asked:-$first}"
if ((${#chosen[@]} < need_gpus)); then
  echo "the plan needs $need_gpus GPUs, but DEVICE or a VISIBLE_DEVICES variable names only ${chosen[*]}" >&2
  exit 1
fi
devices=$(IFS=, && printf '%s' "${chosen[*]:0:need_gpus}")
device_options=(--gpus "$need_gpus")
if [[ -n "$asked" ]]; then device_options=(--gpus "\"device=$devices\""); fi # docker reads a list of them as CSV

started=0
finish() {
  local status=$?
  trap - EXIT
  # stop only a container that this run created
  if ((started && status != 0)) && [[ -s "$id_file" ]]; then
    docker logs "$name" >"$log" 2>&1 || true
    tail -n 30 "$log" >&2
    echo "stopping $name; the whole log is in $log" >&2
    docker stop "$(<"$id_file")" >/dev/null || true
  fi
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "$here/logs" "$here/results"
if running; then
  echo "$name is already running"
else
  mkdir -p "$models"
  docker rm "$name" >/dev/null 2>&1 || true # left by a stopped server
  rm -f "$id_file" "$here/logs/sent"* # of the stopped server
  started=1
  # The token is passed by name, no file holds it. Inside the container the server binds to all addresses; from
  # outside, only 127.0.0.1 reaches it.
  docker run --detach --name "$name" --cidfile "$id_file" \
    --ipc host \
    "${device_options[@]}" \
    --publish "127.0.0.1:$port:$container_port" \
    --volume "$models:$cache" \
    --volume "$here/results:$results" \
    --env HF_TOKEN --env HF_ENDPOINT --env HF_HUB_OFFLINE \
    --env "HF_HOME=$cache" \
    --entrypoint vllm \
    "$image" \
    serve nvidia/Llama-3.3-70B-Instruct-FP4 \
    --host 0.0.0.0 \
    --port 8000 \
    --tensor-parallel-size 2 \
    --max-num-seqs 128 \
    --max-num-batched-tokens 8192 \
    --max-model-len 2048 \
    --gpu-memory-utilization 0.9 \
    --kv-cache-dtype fp8 \
    --async-scheduling \
    --no-enable-prefix-caching
fi

echo "waiting until $name answers (follow it with: docker logs --follow $name)"
deadline=$((SECONDS + start_timeout_s))
until healthy; do
  if ! running; then
    echo "the server stopped before it answered" >&2
    exit 1
  fi
  if ((SECONDS >= deadline)); then
    echo "no answer within $start_timeout_s s; set START_TIMEOUT_S to wait longer" >&2
    exit 1
  fi
  sleep 5
done
docker logs "$name" >"$log" 2>&1
echo "ready: http://$(address)/v1 (stop it with: docker stop $name; log of the start: $log)"
