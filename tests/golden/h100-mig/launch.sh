#!/usr/bin/env bash
# Launch the planned server in a container and wait until it answers.
#
# meta-llama/Llama-2-7b-chat-hf on 1 x NVIDIA H100 SXM 80GB, MIG 3g.40gb, vLLM 0.9.1
# goal: max-throughput; plan 52e76f65eeb5; written by planner 0.0.0
# by: planner recommend --goal max-throughput
#
# predicted for 40 requests of 1024 input and 1024 output tokens, at most 8 in flight:
#   TTFT mean 5,210 ms (4,100 to 6,700)
#   output 1,020 tok/s (860 to 1,210)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

name=planner-52e76f65eeb5
running() { [[ -n "$(docker ps --quiet --filter "name=^$name\$" 2>/dev/null)" ]]; }
container_port=8000
# Where the server is reached: docker remembers the port that it was started with.
address() { docker port "$name" "$container_port/tcp" 2>/dev/null; }
healthy() { curl --silent --fail --noproxy '*' --max-time 10 --output /dev/null "http://$(address)/health"; }
image=vllm/vllm-openai:v0.9.1
port=${PORT:-8000}
models=${HF_HOME:-$HOME/.cache/huggingface}
if [[ "$models" != /* ]]; then models=$PWD/$models; fi
start_timeout_s=${START_TIMEOUT_S:-3600}
log=$here/logs/server.log
id_file=$here/logs/container.id
results=/results # this folder's results/, as the container sees it
cache=/huggingface # the folder of the models, as the container sees it
mig_profile=3g.40gb
# The first MIG instance of this profile, unless DEVICE (or CUDA_VISIBLE_DEVICES) names another by its UUID.
if [[ "${CUDA_VISIBLE_DEVICES:-}" == MIG-* ]]; then DEVICE=${DEVICE:-${CUDA_VISIBLE_DEVICES%%,*}}; fi
device=${DEVICE:-$(nvidia-smi -L | awk -v profile="$mig_profile" '$1 == "MIG" && $2 == profile && !found++ {sub(/\)/, "", $NF); print $NF}')}
if [[ -z "$device" ]]; then
  echo "there is no MIG instance of the profile $mig_profile; make them with: $here/partition.sh --apply" >&2
  exit 1
fi
device_options=(--gpus "device=$device")

started=0
finish() {
  local status=$?
  trap - EXIT
  # only a container that this run has created is stopped by it
  if ((started && status != 0)) && [[ -s "$id_file" ]]; then
    docker logs "$name" >"$log" 2>&1 || true
    tail -n 30 "$log" >&2
    echo "stopping $name; its whole log is in $log" >&2
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
  docker rm "$name" >/dev/null 2>&1 || true # what a stopped server left
  rm -f "$id_file" "$here/logs/sent"* # of the stopped one
  started=1
  # The token is passed through by name and is never written down. Inside the container the server binds to all
  # addresses; from outside, only 127.0.0.1 reaches it.
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
    serve meta-llama/Llama-2-7b-chat-hf \
    --host 0.0.0.0 \
    --port 8000 \
    --max-model-len 2048 \
    --max-num-seqs 8
fi

echo "waiting until $name answers (what it does: docker logs --follow $name)"
deadline=$((SECONDS + start_timeout_s))
until healthy; do
  if ! running; then
    echo "the server stopped before it answered" >&2
    exit 1
  fi
  if ((SECONDS >= deadline)); then
    echo "no answer within $start_timeout_s s; START_TIMEOUT_S sets another limit" >&2
    exit 1
  fi
  sleep 5
done
docker logs "$name" >"$log" 2>&1
echo "ready: http://$(address)/v1 (stop with: docker stop $name; log of the start: $log)"
