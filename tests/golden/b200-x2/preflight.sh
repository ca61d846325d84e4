#!/usr/bin/env bash
# Check that this machine can run the plan. Changes nothing; --apply pulls the image and fixes what it can.
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
image=vllm/vllm-openai:v0.14.0
port=${PORT:-8000}
models=${HF_HOME:-$HOME/.cache/huggingface}
if [[ "$models" != /* ]]; then models=$PWD/$models; fi
failures=0
apply=0
case "${1:-}" in
  "") ;;
  --apply) apply=1 ;;
  *)
    echo "usage: $here/preflight.sh [--apply]   (--apply: pull the image, switch NUMA balancing off; without it nothing changes)" >&2
    exit 2
    ;;
esac

ok() { printf 'ok    %s\n' "$1"; }
note() { printf 'note  %s\n' "$1"; }
# The server starts in spite of it.
warn() { printf 'WARN  %s\n      fix: %s\n' "$1" "$2"; }
fail() {
  printf 'FAIL  %s\n      fix: %s\n' "$1" "$2"
  failures=$((failures + 1))
}

# --- docker and curl -------------------------------------------------------------------------------------------------
if docker info >/dev/null 2>&1; then
  ok "docker answers"
else
  fail "docker does not answer" "install docker, start it, and add your user to the docker group"
fi
if running; then
  ok "$name is already running: this plan is being served"
  echo "ready"
  exit 0
fi
obtain=(docker pull "$image")
if docker image inspect "$image" >/dev/null 2>&1; then
  ok "the image $image is present"
elif ((apply)) && "${obtain[@]}" >&2; then
  ok "the image $image is present now"
elif ((apply)); then
  fail "the image $image is not available" "read what ${obtain[*]} prints above"
else
  warn "the image $image is missing: the first start pulls it" "${obtain[*]} (or $here/preflight.sh --apply)"
fi
if command -v curl >/dev/null; then
  ok "curl is installed"
else
  fail "curl is missing" "install curl: launch.sh uses it to ask whether the server is ready"
fi
if [[ "$here$models" == *:* ]]; then
  fail "docker cannot mount a folder with a colon in its path: $here, $models" "rename the folder, or set HF_HOME to another one"
fi

# --- GPUs ------------------------------------------------------------------------------------------------------------
oldest_driver=575
need_gpus=2
query() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null || true; }
driver=$(query driver_version | sed -n 1p)
if [[ ! "$driver" =~ ^[0-9]+\. ]]; then
  fail "nvidia-smi does not answer" "install the NVIDIA driver, $oldest_driver or newer"
elif ((${driver%%.*} < oldest_driver)); then
  warn "the NVIDIA driver is $driver; the recipe asks for $oldest_driver or newer" "install a newer driver, or try: the image may contain what an older one lacks"
else
  ok "the NVIDIA driver is $driver"
fi
if command -v nvidia-container-runtime-hook >/dev/null || [[ "$(docker info 2>/dev/null)" =~ (Runtimes|cdi):.*nvidia ]]; then
  ok "docker can reach NVIDIA GPUs"
else
  fail "docker cannot reach NVIDIA GPUs" "install the NVIDIA Container Toolkit and restart docker"
fi
capability=10.0
found=$(query name | sort -u | paste -s -d ';' -)
gpus=$(query compute_cap | grep -c -x -F "$capability" || true)
if ((gpus >= need_gpus)); then
  ok "$gpus GPUs of compute capability $capability, $need_gpus needed"
else
  fail "$gpus GPUs of compute capability $capability, $need_gpus needed" "use a machine that has them; this one has: ${found:-none}"
fi
if [[ "$(query mig.mode.current)" == *Enabled* ]]; then
  fail "a GPU is partitioned into MIG instances, the plan needs whole GPUs" "with no process on it: sudo nvidia-smi -mig 0"
fi
need_gpus=2
asked=${DEVICE:-${CUDA_VISIBLE_DEVICES:-}}
first=0,1
IFS=, read -r -a chosen <<<"${asked:-$first}"
if ((${#chosen[@]} < need_gpus)); then
  fail "DEVICE or CUDA_VISIBLE_DEVICES names ${chosen[*]}, $need_gpus GPUs needed" "name that many, or none"
fi
taken=",$(IFS=, && printf '%s' "${chosen[*]:0:need_gpus}"),"
need_total_mib=181525
need_free_mib=163372
while IFS=', ' read -r index uuid total_mib free_mib; do
  if [[ ! "$total_mib$free_mib" =~ ^[0-9]+$ || "$taken" != *,"$index",* && "$taken" != *,"$uuid",* ]]; then continue; fi
  if ((total_mib < need_total_mib)); then
    fail "GPU $index has $total_mib MiB, the plan expects $need_total_mib" "plan again for the GPU of this machine"
  elif ((free_mib < need_free_mib)); then
    fail "GPU $index has $free_mib MiB free, the server needs $need_free_mib" "stop the processes that nvidia-smi shows"
  else
    ok "GPU $index has $free_mib of $total_mib MiB free"
  fi
done < <(query index,uuid,memory.total,memory.free)

# --- disk, port, token -----------------------------------------------------------------------------------------------
existing=$models
while [[ ! -d "$existing" ]]; do existing=$(dirname "$existing"); done
if [[ "$existing" == "$models" || -w "$existing" ]]; then
  ok "models are stored in $models"
else
  fail "cannot create $models, the folder of the models" "set HF_HOME to a folder that you may write to"
fi
cached=$models/hub/models--nvidia--Llama-3.3-70B-Instruct-FP4
cached_gb=0
if [[ -d "$cached" ]]; then
  cached_gb=$(($({ du -s -k "$cached" 2>/dev/null || true; } | cut -f 1) * 1024 / 1000000000))
fi
need_gb=$((43 - cached_gb))
free_gb=$(($(df -k --output=avail "$existing" | tail -n 1) * 1024 / 1000000000))
if ((free_gb >= need_gb)); then
  ok "$free_gb GB free for the model, $((need_gb > 0 ? need_gb : 0)) GB to download"
else
  fail "$free_gb GB free in $existing, $need_gb GB to download" "free some space, or set HF_HOME to a folder on a larger disk"
fi
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
  fail "port $port is taken" "stop the program that listens there, or set PORT to a free port"
else
  ok "port $port is free"
fi

if ((failures > 0)); then
  echo "not ready: $failures of the checks failed" >&2
  exit 1
fi
echo "ready"
