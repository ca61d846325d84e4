#!/usr/bin/env bash
# Launch the planned server in a container and wait until it answers.
# (header)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

name=planner-DIGEST
running() { [[ -n "$(docker ps --quiet --filter "name=^$name\$" 2>/dev/null)" ]]; }
container_port=8000
# The server's address: docker knows the port that it was started with.
address() { docker port "$name" "$container_port/tcp" 2>/dev/null; }
healthy() { curl --silent --fail --noproxy '*' --max-time 10 --output /dev/null "http://$(address)/health"; }
image=rocm/vllm-dev:nightly
port=${PORT:-8000}
models=${HF_HOME:-$HOME/.cache/huggingface}
if [[ "$models" != /* ]]; then models=$PWD/$models; fi
start_timeout_s=${START_TIMEOUT_S:-3600}
log=$here/logs/server.log
id_file=$here/logs/container.id
results=/results # where the container sees this folder's results/
cache=/huggingface # where the container sees the folder of the models
# bind SOURCE TARGET: a value of docker's --mount, which takes colons, and commas in quotes.
bind() { printf 'type=bind,"source=%s","target=%s"' "${1//\"/\"\"}" "${2//\"/\"\"}"; }
# The first GPUs that DEVICE or the vendor's own variable names, as any program of this machine takes them.
need_gpus=1
asked=${DEVICE:-${HIP_VISIBLE_DEVICES:-${CUDA_VISIBLE_DEVICES:-}}}
first=0
IFS=, read -r -a chosen <<<"${asked:-$first}"
if ((${#chosen[@]} < need_gpus)); then
  echo "the plan needs $need_gpus GPUs, but DEVICE or a VISIBLE_DEVICES variable names only ${chosen[*]}" >&2
  exit 1
fi
devices=$(IFS=, && printf '%s' "${chosen[*]:0:need_gpus}")
# HIP numbers the GPUs that ROCR_VISIBLE_DEVICES leaves, so that variable is passed through.
device_options=(--env ROCR_VISIBLE_DEVICES --env "HIP_VISIBLE_DEVICES=$devices")

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
  # The token is passed by name, no file holds it. Inside the container the server listens on all addresses; from
  # outside, only 127.0.0.1 reaches it, or LISTEN_ADDRESS.
  docker run --detach --name "$name" --cidfile "$id_file" \
    --device /dev/kfd \
    --device /dev/dri \
    --group-add video \
    --ipc host \
    --security-opt seccomp=unconfined \
    "${device_options[@]}" \
    --publish "${LISTEN_ADDRESS:-127.0.0.1}:$port:$container_port" \
    --mount "$(bind "$models" "$cache")" \
    --mount "$(bind "$here/results" "$results")" \
    --env HF_TOKEN --env HF_ENDPOINT --env HF_HUB_OFFLINE --env VLLM_API_KEY \
    --env VLLM_ROCM_USE_AITER=1 \
    --env SAFETENSORS_FAST_GPU=1 \
    --env "HF_HOME=$cache" \
    --entrypoint vllm \
    "$image" \
    serve amd/Llama-3.3-70B-Instruct-FP8-KV \
    --host 0.0.0.0 \
    --port 8000 \
    --tensor-parallel-size 1 \
    --max-num-batched-tokens 32768 \
    --max-num-seqs 64 \
    --max-model-len 9216 \
    --gpu-memory-utilization 0.9 \
    --kv-cache-dtype fp8 \
    --async-scheduling \
    --no-enable-prefix-caching \
    --compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["-rms_norm","-quant_fp8","-silu_and_mul"]}'
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
