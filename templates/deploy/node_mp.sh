# The arguments are the command to start; the variables say which node this is.
set -euo pipefail
more=(--distributed-executor-backend mp --nnodes "$NODES" --node-rank "$NODE_RANK")
more+=(--master-addr "$HEAD" --master-port "$HEAD_PORT")
if ((NODE_RANK > 0)); then more+=(--headless); fi
exec "$@" "${more[@]}"
