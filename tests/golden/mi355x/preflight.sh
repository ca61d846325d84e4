#!/usr/bin/env bash
# Check that this machine can run the plan. Changes nothing; --apply pulls the image and fixes what it can.
# (header)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

name=planner-DIGEST
running() { [[ -n "$(docker ps --quiet --filter "name=^$name\$" 2>/dev/null)" ]]; }
image=rocm/vllm-dev:nightly
port=${PORT:-8000}
models=${HF_HOME:-$HOME/.cache/huggingface}
if [[ "$models" != /* ]]; then models=$PWD/$models; fi
failures=0
apply=0
servers=1 # to check for
last_port=$port
for word in "$@"; do
  case "$word" in
    --apply) apply=1 ;;
    --node)
      servers=8
      # the balancer has the port, its servers the next ones
      last_port=$((port + servers)) ;;
    *)
      echo "usage: $here/preflight.sh [--node] [--apply]   (--node: for all servers of instances.sh; --apply: pull the image, switch NUMA balancing off; without it nothing changes)" >&2
      exit 2
      ;;
  esac
done

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
if ((last_port > port)); then
  if running; then
    fail "$name is running and holds GPUs that instances.sh starts servers on" "docker stop $name"
  fi
  one=$name
  alive=0
  for ((copy = 0; copy < servers; copy++)); do
    name=$one-$copy
    if running; then alive=$((alive + 1)); fi
  done
  name=$one
  if ((alive == servers)); then
    ok "all $servers servers are already running: $here/instances.sh status asks them"
    echo "ready"
    exit 0
  fi
  if ((alive)); then # what they hold is not free, so that nothing more can be checked
    fail "$alive of $servers servers run" "$here/instances.sh start, which starts the others"
    exit 1
  fi
  if command -v nginx >/dev/null; then
    ok "nginx is installed"
  else
    fail "nginx is missing" "sudo apt install nginx-light: instances.sh spreads the requests with it"
  fi
elif running; then
  ok "$name is already running: this plan is being served"
  echo "ready"
  exit 0
fi
obtain=(docker pull "$image")
image_gb=0 # to come
if docker image inspect "$image" >/dev/null 2>&1; then
  ok "the image $image is present"
elif ((apply)) && "${obtain[@]}" >&2; then
  ok "the image $image is present now"
elif ((apply)); then
  fail "the image $image is not available" "read what ${obtain[*]} prints above"
else
  image_gb=60
  warn "the image $image is missing: the first start pulls it" "${obtain[*]} (or $here/preflight.sh --apply)"
fi
if command -v curl >/dev/null; then
  ok "curl is installed"
else
  fail "curl is missing" "install curl: launch.sh uses it to ask whether the server is ready"
fi

# --- GPUs (read from the driver's files, whose format no version of amd-smi changes) ------------------------------------------
architecture=gfx950
need_gpus=1
need_gpus=$((need_gpus * servers))
if [[ -e /dev/kfd ]]; then
  ok "/dev/kfd exists"
else
  fail "/dev/kfd is missing" "install the amdgpu driver and load it: sudo modprobe amdgpu"
fi
if [[ -r /sys/module/amdgpu/version ]]; then
  ok "the amdgpu driver is $(</sys/module/amdgpu/version)"
fi
targets=$(awk '$1 == "gfx_target_version" && $2 > 0 {print $2}' /sys/class/kfd/kfd/topology/nodes/*/properties 2>/dev/null || true)
found=${targets//$'\n'/ }
gpus=$(grep -c -x -F 90500 <<<"$targets" || true)
planned_gpu='AMD Instinct MI355X'
planned_ids='0x75a3
0x75b3' # of PCI
ids=$(cat /sys/bus/pci/drivers/amdgpu/*/device 2>/dev/null | sort -u || true)
products=$(cat /sys/bus/pci/drivers/amdgpu/*/product_name 2>/dev/null | sort -u | paste -s -d ';' - || true)
if ((gpus >= need_gpus)); then
  ok "$gpus GPUs $architecture, $need_gpus needed: ${products:-${ids:-of unknown name}}"
  # GPUs of one architecture differ: an MI308X is no MI300X
  if [[ -n "$planned_ids" && -n "$ids" ]] && ! grep -q -i -x -F "$planned_ids" <<<"$ids"; then
    warn "the GPUs are ${products:-unknown} (PCI device ${ids//$'\n'/ }), the plan is for $planned_gpu (${planned_ids//$'\n'/ }): the prediction is for that" \
      "plan again with --gpu local on this machine, or go on if it is the same GPU by another number"
  fi
else
  fail "$gpus GPUs $architecture, $need_gpus needed" "use a machine that has them; this one has: ${found:-none}"
fi
modes() { cat /sys/bus/pci/drivers/amdgpu/*/current_"$1"_partition 2>/dev/null | sort -u | paste -s -d ' ' - || true; }
modes_are="$(modes compute)/$(modes memory)"
modes_planned=SPX/NPS1
if [[ "$modes_are" == "$modes_planned" || "$modes_are" == / ]]; then
  ok "the GPUs are not partitioned"
else
  fail "the GPUs are partitioned as $modes_are, the plan needs whole ones" \
    "with no process on them: sudo amd-smi set --memory-partition NPS1, reload the driver if it asks for it, then sudo amd-smi set --gpu all --compute-partition SPX"
fi
need_gpus=1
asked=${DEVICE:-${HIP_VISIBLE_DEVICES:-${CUDA_VISIBLE_DEVICES:-}}}
first=0
IFS=, read -r -a chosen <<<"${asked:-$first}"
if ((last_port > port)); then # every GPU of the servers, whatever DEVICE names
  need_gpus=$((need_gpus * servers))
  asked=
  chosen=()
  for ((gpu = 0; gpu < need_gpus; gpu++)); do chosen+=("$gpu"); done
fi
if [[ -z "$asked" && -n "${ROCR_VISIBLE_DEVICES:-}" ]] && ((last_port == port)); then IFS=, read -r -a chosen <<<"$ROCR_VISIBLE_DEVICES"; fi
if ((${#chosen[@]} < need_gpus)); then
  fail "DEVICE or HIP_VISIBLE_DEVICES names ${chosen[*]}, $need_gpus GPUs needed" "name that many, or none"
fi
taken=",$(IFS=, && printf '%s' "${chosen[*]:0:need_gpus}"),"
need_total_mib=291947
need_free_mib=262752
seen=-1
for device in /sys/bus/pci/drivers/amdgpu/*/; do
  if [[ ! -r "$device/mem_info_vram_total" ]]; then continue; fi
  seen=$((seen + 1))
  if [[ "$taken" != *,"$seen",* ]]; then continue; fi
  total_mib=$(($(<"$device/mem_info_vram_total") / 1048576))
  free_mib=$((total_mib - $(<"$device/mem_info_vram_used") / 1048576))
  if ((total_mib < need_total_mib)); then
    fail "GPU $seen has $total_mib MiB, the plan expects $need_total_mib" "plan again for the GPU of this machine"
  elif ((free_mib < need_free_mib)); then
    fail "GPU $seen has $free_mib MiB free, the server needs $need_free_mib" "stop the processes that amd-smi process shows"
  else
    ok "GPU $seen has $free_mib of $total_mib MiB free"
  fi
done
balancing() { [[ -r /proc/sys/kernel/numa_balancing && "$(</proc/sys/kernel/numa_balancing)" != 0 ]]; }
if balancing && ((apply)); then
  as_root=()
  if ((EUID != 0)); then as_root=(sudo); fi
  "${as_root[@]}" sysctl --quiet kernel.numa_balancing=0 >&2 || true
fi
if balancing; then
  warn "automatic NUMA balancing is on: it slows the GPUs down, which the prediction does not include" \
    "sudo sysctl kernel.numa_balancing=0 (or $here/preflight.sh --apply); to keep it over a reboot, write it into /etc/sysctl.d/"
else
  ok "automatic NUMA balancing is off"
fi

# --- disk, python, port, token ---------------------------------------------------------------------------------------
declare -A needed_gb=() purposes=() # by file system
need() { # GB FOLDER PURPOSE
  local disk
  disk=$({ df --output=target "$2" 2>/dev/null || true; } | tail -n 1)
  if [[ -z "$disk" ]]; then return; fi # it is on another machine
  needed_gb[$disk]=$((${needed_gb[$disk]:-0} + $1))
  purposes[$disk]+="${purposes[$disk]:+, }$1 GB for $3"
}
if ((image_gb > 0)); then
  images=$(docker info --format '{{.DockerRootDir}}' 2>/dev/null || echo /)
  need "$image_gb" "$images" "the image"
fi
existing=$models
while [[ ! -d "$existing" ]]; do existing=$(dirname "$existing"); done
if [[ "$existing" == "$models" || -w "$existing" ]]; then
  ok "models are stored in $models"
else
  fail "cannot create $models, the folder of the models" "set HF_HOME to a folder that you may write to"
fi
cached=$models/hub/models--amd--Llama-3.3-70B-Instruct-FP8-KV
cached_gb=0
if [[ -d "$cached" ]]; then
  cached_gb=$(($({ du -s -k "$cached" 2>/dev/null || true; } | cut -f 1) * 1024 / 1000000000))
fi
need_gb=$((73 - cached_gb))
if ((need_gb > 0)); then need "$need_gb" "$existing" "the model"; fi
if [[ ! -e "$here/.lm_eval/complete" ]]; then need 2 "$here" "lm_eval of accuracy.sh"; fi
for disk in "${!needed_gb[@]}"; do
  free_gb=$(($(df -k --output=avail "$disk" | tail -n 1) * 1024 / 1000000000))
  if ((free_gb >= needed_gb[$disk])); then
    ok "$free_gb GB free in $disk, ${needed_gb[$disk]} needed: ${purposes[$disk]}"
  else
    fail "$free_gb GB free in $disk, ${needed_gb[$disk]} needed: ${purposes[$disk]}" "free some space, or move HF_HOME, this folder or the images of containers to a larger disk"
  fi
done
if python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
  ok "python3 makes environments"
else
  warn "accuracy.sh needs a python3 of 3.10 or newer that can make an environment" "on Debian and Ubuntu: sudo apt-get install python3-venv"
fi
for ((; port < last_port; port++)); do # the last one is checked as that of one server
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    fail "port $port is taken" "stop the program that listens there: instances.sh needs the ports up to $last_port"
  else
    ok "port $port is free"
  fi
done
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
