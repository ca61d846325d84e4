#!/usr/bin/env bash
# On the first node: launch the planned server on the cluster and wait until it answers.
# (header)
set -euo pipefail
name=planner-DIGEST-ray
running() { [[ -n "$(docker ps --quiet --filter "name=^$name\$" 2>/dev/null)" ]]; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
start_timeout_s=${START_TIMEOUT_S:-1680}
url=http://127.0.0.1:8000
healthy() { curl --silent --fail --noproxy '*' --max-time 10 --output /dev/null "$url/health"; }

"$here/check.sh"
if healthy; then
  echo "already answering: $url/v1"
  exit 0
fi
# The output goes to the log of the container.
docker exec --detach "$name" bash -c 'exec "$@" >/proc/1/fd/1 2>&1' planner \
    vllm serve amd/Llama-3.3-70B-Instruct-FP8-KV \
    --port 8000 \
    --tensor-parallel-size 8 \
    --pipeline-parallel-size 2 \
    --max-num-batched-tokens 32768 \
    --max-num-seqs 64 \
    --max-model-len 9216 \
    --gpu-memory-utilization 0.9 \
    --kv-cache-dtype fp8 \
    --async-scheduling \
    --no-enable-prefix-caching \
    --compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["-rms_norm","-quant_fp8","-silu_and_mul"]}' \
    --host 127.0.0.1 \
    --distributed-executor-backend ray
echo "waiting until it answers (follow it with: docker logs --follow $name)"
deadline=$((SECONDS + start_timeout_s))
until healthy; do
  if ! running; then
    echo "the head stopped" >&2
    exit 1
  fi
  if ((SECONDS >= deadline)); then
    echo "no answer within $start_timeout_s s; set START_TIMEOUT_S to wait longer" >&2
    exit 1
  fi
  sleep 5
done
echo "ready: $url/v1 (stop it with ./stop.sh on every node)"
