#!/usr/bin/env bash
# Partition the GPUs as the plan needs them. Shows what it would do; --apply does it, --leave goes back.
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

apply=0
leave=0
for argument in "$@"; do
  case "$argument" in
    --apply) apply=1 ;;
    --leave) leave=1 ;;
    *)
      echo "usage: $here/partition.sh [--leave] [--apply]   (--leave: back to whole GPUs; without --apply nothing is changed)" >&2
      exit 2
      ;;
  esac
done

refuse() {
  printf 'refused: %s\n    fix: %s\n' "$1" "$2" >&2
  exit 1
}
changed=0
as_root=()
if ((EUID != 0)); then as_root=(sudo); fi
# Says the command, and with --apply runs it.
root() {
  printf '+ %s\n' "${as_root[*]}${as_root:+ }$*"
  if ((apply)); then
    changed=1
    "${as_root[@]}" "$@"
  fi
}
finish() {
  local status=$?
  if ((status != 0 && changed)); then
    echo "stopped on the way; run it again with --apply, or go back with --leave --apply" >&2
  fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

gpu=${GPU:-0} # the GPU to cut, as nvidia-smi numbers it
profile=3g.40gb
profiles=3g.40gb,3g.40gb

# --- checks, which change nothing ------------------------------------------------------------------------------------
if ! mode=$(nvidia-smi -i "$gpu" --query-gpu=mig.mode.current --format=csv,noheader); then
  refuse "nvidia-smi does not know GPU $gpu" "set GPU to one of: nvidia-smi -L"
fi
if [[ "$mode" != Enabled && "$mode" != Disabled ]]; then
  refuse "GPU $gpu has no MIG" "choose a plan for the whole GPU"
fi
instances=$(nvidia-smi -L | awk -v gpu="GPU $gpu:" '/^GPU / {mine = index($0, gpu) == 1} mine && $1 == "MIG" {print $2}' | paste -s -d , -)
if ((leave)) && [[ "$mode" == Disabled ]]; then
  echo "GPU $gpu is whole already"
  exit 0
fi
if ((!leave)) && [[ "$instances" == "$profiles" ]]; then
  echo "GPU $gpu is cut into $profiles already"
  exit 0
fi
if [[ "$(nvidia-smi -i "$gpu" --query-compute-apps=pid --format=csv,noheader)" == *[0-9]* ]]; then
  refuse "processes use GPU $gpu" "stop them (docker ps; nvidia-smi), then run this again"
fi
if ((!leave)) && [[ -n "$instances" ]]; then
  refuse "GPU $gpu is cut into $instances" "go back to the whole GPU first: $here/partition.sh --leave --apply"
fi

# --- changes ---------------------------------------------------------------------------------------------------------
set_mig() {
  root nvidia-smi -i "$gpu" -mig "$1"
  if ((apply)) && [[ "$(nvidia-smi -i "$gpu" --query-gpu=mig.mode.current --format=csv,noheader)" != "$2" ]]; then
    refuse "GPU $gpu takes the new mode with its next reset" "sudo nvidia-smi --gpu-reset -i $gpu (or reboot), then run this again"
  fi
}
if ((leave)); then
  # there may be none: then these two have nothing to do
  root nvidia-smi mig -i "$gpu" -dci || true
  root nvidia-smi mig -i "$gpu" -dgi || true
  set_mig 0 Disabled
else
  if [[ "$mode" == Disabled ]]; then
    set_mig 1 Enabled
  fi
  root nvidia-smi mig -i "$gpu" -cgi "$profiles" -C
fi
if ((!apply)); then
  echo "nothing was changed; add --apply to do it"
  exit 0
fi
if ((leave)); then
  echo "GPU $gpu is whole"
else
  nvidia-smi -L | awk -v profile="$profile" '$1 == "MIG" && $2 == profile'
fi
