# The arguments are the command to start; the variables say which node this is.
set -euo pipefail
if ! command -v ray >/dev/null; then
  echo "this image has no ray, which is needed to join the nodes" >&2
  exit 1
fi
deadline=$((SECONDS + START_TIMEOUT_S))
wait_until() { # MESSAGE COMMAND...
  local message=$1
  shift
  until "$@" 2>/dev/null; do
    if ((SECONDS >= deadline)); then
      echo "$message" >&2
      exit 1
    fi
    sleep 3
  done
}
head_answers() {
  python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)' "$HEAD" "$HEAD_PORT"
}
all_joined() {
  python3 -c 'import ray, sys; ray.init(address="auto", log_to_driver=False)
sys.exit(sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[1]))' "$NODES"
}
own=(--num-gpus "$NODE_GPUS" --disable-usage-stats)
if [[ -n "${VLLM_HOST_IP:-}" ]]; then own+=(--node-ip-address "$VLLM_HOST_IP"); fi
if ((NODE_RANK > 0)); then
  wait_until "the head $HEAD:$HEAD_PORT does not answer" head_answers
  exec ray start --address "$HEAD:$HEAD_PORT" --block "${own[@]}"
fi
ray start --head --port "$HEAD_PORT" --include-dashboard=false "${own[@]}"
wait_until "not all of the $NODES nodes joined in time" all_joined
exec "$@" --distributed-executor-backend ray
