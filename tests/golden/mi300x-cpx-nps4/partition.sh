#!/usr/bin/env bash
# Partition the GPUs as the plan needs them. Shows what it would do; --apply does it, --leave goes back.
#
# meta-llama/Llama-2-7b-chat-hf on 1 x AMD Instinct MI300X, CPX/NPS4 partition, vLLM 0.9.1
# goal: max-throughput; plan bacc60272afc; written by planner 0.0.0
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

compute=CPX
memory=NPS4
partitions_per_gpu=8
if ((leave)); then
  compute=SPX
  memory=NPS1
  partitions_per_gpu=1
fi

# --- checks, which change nothing ------------------------------------------------------------------------------------
devices=(/sys/bus/pci/drivers/amdgpu/*/current_compute_partition)
each() { cat "${devices[@]/%current_compute_partition/$1}" | sort -u | paste -s -d ' ' -; } # a file of all GPUs, each value once
if [[ ! -r "${devices[0]}" ]]; then
  refuse "the amdgpu driver shows no GPU that can be partitioned" "load amdgpu 6.12.12 or newer on the machine itself (ROCm 6.4 or newer)"
fi
if grep -q -w hypervisor /proc/cpuinfo; then
  refuse "this is a virtual machine; the mode can be set on the host only" "ask whoever runs the host, or use a bare-metal machine"
fi
if ! command -v amd-smi >/dev/null; then
  refuse "amd-smi is missing" "install the ROCm user tools, 6.4 or newer"
fi
if [[ "$(each current_compute_partition)/$(each current_memory_partition)" == "$compute/$memory" ]]; then
  echo "the GPUs are partitioned as $compute/$memory already"
  exit 0
fi
finest=$(cat "${devices[@]/%current_compute_partition/current_memory_partition}" | tr -d -c '0-9\n' | sort -n | tail -n 1)
coarser=$((${memory#NPS} < finest)) # then the driver offers the compute mode only after the memory mode has changed
if [[ "$(each available_memory_partition)" != *"$memory"* ]] ||
  { ((!coarser)) && [[ "$(each available_compute_partition)" != *"$compute"* ]]; }; then
  refuse "these GPUs do not offer $compute/$memory" "see what they offer: sudo amd-smi partition --accelerator"
fi
if [[ -n "$(ls -A /sys/class/kfd/kfd/proc 2>/dev/null)" ]]; then
  refuse "processes use the GPUs: $(find /sys/class/kfd/kfd/proc -mindepth 1 -maxdepth 1 -printf '%f ')" "stop them (docker ps; amd-smi process), then run this again"
fi

# --- changes ---------------------------------------------------------------------------------------------------------
# There may never be more memory partitions than compute partitions. So a finer memory mode comes after the compute mode
# and a coarser one before it. All GPUs change together: mixed memory modes corrupt what they send each other.
wait_for() {
  if ((!apply)); then return; fi
  for ((second = 0; second < 180; second++)); do
    if [[ "$(each "$1" 2>/dev/null)" == "$2" ]]; then return; fi
    sleep 1
  done
  refuse "$1 is '$(each "$1" 2>/dev/null)' and not $2" "see: sudo dmesg | tail"
}
set_compute() {
  if ((apply)) && [[ "$(each current_compute_partition)" == "$compute" ]]; then return; fi
  root amd-smi set --gpu all --compute-partition "$compute"
  wait_for current_compute_partition "$compute"
}
set_memory() {
  root amd-smi set --memory-partition "$memory" <<<y # it asks whether all GPU processes may end; there are none
  # ROCm 6 reloads the driver by itself, ROCm 7 leaves it to the caller
  if ((!apply)) || [[ "$(each current_memory_partition 2>/dev/null)" != "$memory" ]]; then
    root modprobe -r amdgpu
    root modprobe amdgpu
  fi
  wait_for current_memory_partition "$memory"
}
if [[ "$(each current_memory_partition)" == "$memory" ]]; then
  set_compute
elif ((coarser)); then
  set_memory
  set_compute
else
  set_compute
  set_memory
  if ((apply)); then set_compute; fi # loading the driver may choose another mode
fi

if ((!apply)); then
  echo "nothing was changed; add --apply to do it"
  exit 0
fi
gpus=$(awk '$1 == "gfx_target_version" && $2 > 0' /sys/class/kfd/kfd/topology/nodes/*/properties | wc -l)
if ((gpus != ${#devices[@]} * partitions_per_gpu)); then
  refuse "the driver shows $gpus GPUs, $((${#devices[@]} * partitions_per_gpu)) were expected" "a graphics driver of the board may hold a render node: sudo modprobe -r ast, then reload amdgpu"
fi
echo "the GPUs are partitioned as $compute/$memory: $gpus of them"
