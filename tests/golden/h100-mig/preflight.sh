#!/usr/bin/env bash
# Check that this machine can run the plan. Changes nothing; --apply pulls the image and mends what it can.
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
image=vllm/vllm-openai:v0.9.1
port=${PORT:-8000}
models=${HF_HOME:-$HOME/.cache/huggingface}
if [[ "$models" != /* ]]; then models=$PWD/$models; fi
failures=0
apply=0
case "${1:-}" in
  "") ;;
  --apply) apply=1 ;;
  *)
    echo "usage: $here/preflight.sh [--apply]   (--apply: pull the image, switch NUMA balancing off; else nothing is changed)" >&2
    exit 2
    ;;
esac

ok() { printf 'ok    %s\n' "$1"; }
note() { printf 'note  %s\n' "$1"; }
# The server starts all the same.
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
  ok "the image $image is here now"
elif ((apply)); then
  fail "the image $image could not be had" "see above what ${obtain[*]} says"
else
  warn "the image $image is not present yet: the first start pulls it" "${obtain[*]} (or $here/preflight.sh --apply)"
fi
if command -v curl >/dev/null; then
  ok "curl is there"
else
  fail "curl is missing" "install curl: launch.sh asks the server with it whether it is ready"
fi
if [[ "$here$models" == *:* ]]; then
  fail "docker cannot mount a folder with a colon in its path: $here, $models" "move it, or point HF_HOME elsewhere"
fi

# --- GPUs ------------------------------------------------------------------------------------------------------------
oldest_driver=575
need_gpus=1
query() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null || true; }
driver=$(query driver_version | sed -n 1p)
if [[ ! "$driver" =~ ^[0-9]+\. ]]; then
  fail "nvidia-smi does not answer" "install the NVIDIA driver, $oldest_driver or newer"
elif ((${driver%%.*} < oldest_driver)); then
  warn "the NVIDIA driver is $driver; the recipe asks for $oldest_driver or newer" "install a newer driver, or try: the image may bring what an older one lacks"
else
  ok "the NVIDIA driver is $driver"
fi
if command -v nvidia-container-runtime-hook >/dev/null || [[ "$(docker info 2>/dev/null)" =~ (Runtimes|cdi):.*nvidia ]]; then
  ok "docker can reach NVIDIA GPUs"
else
  fail "docker cannot reach NVIDIA GPUs" "install the NVIDIA Container Toolkit and restart docker"
fi
capability=9.0
found=$(query name | sort -u | paste -s -d ';' -)
gpus=$(query compute_cap | grep -c -x -F "$capability" || true)
mig_profile=3g.40gb
mig_devices=$(nvidia-smi -L 2>/dev/null | awk -v profile="$mig_profile" '$1 == "MIG" && $2 == profile' | wc -l || true)
if ((gpus < 1)); then
  fail "no GPU of compute capability $capability" "run this on a machine that has one; it has: ${found:-none}"
elif ((mig_devices >= need_gpus)); then
  ok "$mig_devices MIG instances $mig_profile, $need_gpus needed"
else
  fail "$mig_devices MIG instances $mig_profile, $need_gpus needed" "see what it would do, then add --apply: $here/partition.sh"
fi

# --- disk, port, token -----------------------------------------------------------------------------------------------
existing=$models
while [[ ! -d "$existing" ]]; do existing=$(dirname "$existing"); done
if [[ "$existing" == "$models" || -w "$existing" ]]; then
  ok "models are kept in $models"
else
  fail "cannot make the folder of the models, $models" "point HF_HOME to a folder that you may write to"
fi
cached=$models/hub/models--meta-llama--Llama-2-7b-chat-hf
cached_gb=0
if [[ -d "$cached" ]]; then
  cached_gb=$(($({ du -s -k "$cached" 2>/dev/null || true; } | cut -f 1) * 1024 / 1000000000))
fi
need_gb=$((14 - cached_gb))
free_gb=$(($(df -k --output=avail "$existing" | tail -n 1) * 1024 / 1000000000))
if ((free_gb >= need_gb)); then
  ok "$free_gb GB free for the model, $((need_gb > 0 ? need_gb : 0)) GB to download"
else
  fail "$free_gb GB free in $existing, $need_gb GB to download" "free some space, or point HF_HOME to a larger disk"
fi
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
  fail "port $port is taken" "stop what listens there, or set PORT to a free one"
else
  ok "port $port is free"
fi
if [[ -n "${HF_TOKEN:-}" ]]; then
  ok "HF_TOKEN is set"
elif [[ -s "$models/token" ]]; then
  ok "a token is stored in $models"
elif ((need_gb <= 0)); then
  ok "no token is set, and none is needed: the model is on disk"
else
  fail "the repository is gated and HF_TOKEN is not set" "accept its licence on the hub, then: export HF_TOKEN=..."
fi

if ((failures > 0)); then
  echo "not ready: $failures of the checks failed" >&2
  exit 1
fi
echo "ready"
