#!/usr/bin/env bash
# On the first node: start the head of the Ray cluster in a container.
# (header)
set -euo pipefail
name=planner-DIGEST-ray
running() { [[ -n "$(docker ps --quiet --filter "name=^$name\$" 2>/dev/null)" ]]; }
image=${IMAGE:-rocm/vllm-dev:nightly}
address=${VLLM_HOST_IP:-$(hostname -I | cut -d' ' -f1)} # of this node, as the others reach it
models=${HF_HOME:-$HOME/.cache/huggingface}
if [[ "$models" != /* ]]; then models=$PWD/$models; fi
cache=/huggingface # where the container sees the folder of the models

# Nodes talk to each other, so containers share the network of their node. NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name
# the interface that carries the collectives, NCCL_IB_HCA the InfiniBand adapter. RCCL reads the same names.
start_container() { # COMMAND OF RAY...
  local rdma=()
  if running; then
    echo "$name is already running" >&2
    exit 1
  fi
  if ! docker image inspect "$image" >/dev/null 2>&1; then
    echo "the image $image is missing; get it with: docker pull $image" >&2
    exit 1
  fi
  if [[ -d /dev/infiniband ]]; then rdma=(--device /dev/infiniband --ulimit memlock=-1 --cap-add IPC_LOCK); fi
  mkdir -p "$models"
  docker rm "$name" >/dev/null 2>&1 || true # left by a stopped container
  docker run --detach --name "$name" --network host \
    --device /dev/kfd \
    --device /dev/dri \
    --group-add video \
    --ipc host \
    --security-opt seccomp=unconfined \
    "${rdma[@]}" \
    --volume "$models:$cache" \
    --env HF_TOKEN --env HF_ENDPOINT --env HF_HUB_OFFLINE \
    --env NCCL_SOCKET_IFNAME --env GLOO_SOCKET_IFNAME --env NCCL_IB_HCA --env NCCL_DEBUG \
    --env VLLM_ROCM_USE_AITER=1 \
    --env SAFETENSORS_FAST_GPU=1 \
    --env HF_HOME=/huggingface \
    --env "VLLM_HOST_IP=$address" \
    --entrypoint ray \
    "$image" \
    start --block --disable-usage-stats --node-ip-address "$address" --num-gpus 8 "$@" >/dev/null
}

# Whoever reaches Ray's ports can run programs: only trusted machines may reach this network.
start_container --head --port 6379 --include-dashboard=false
others=$((2 - 1))
echo "the head runs at $address; run ./worker.sh $address on each of $others other node(s), then ./launch.sh here"
