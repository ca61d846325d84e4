# The arguments are the command to start; the variables say which node this is.
set -euo pipefail
more=(--data-parallel-size-local "$LOCAL_RANKS" --data-parallel-address "$HEAD" --data-parallel-rpc-port "$HEAD_PORT")
if ((NODE_RANK > 0)); then more+=(--headless --data-parallel-start-rank "$((NODE_RANK * LOCAL_RANKS))"); fi
exec "$@" "${more[@]}"
