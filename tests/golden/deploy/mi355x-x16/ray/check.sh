#!/usr/bin/env bash
# On the first node: check that all nodes and GPUs have joined.
#
# amd/Llama-3.3-70B-Instruct-FP8-KV on 16 x AMD Instinct MI355X, vLLM 0.11.0
# goal: max-throughput; plan 33dd6efacc44; written by planner 0.0.0
# planned by: planner recommend --goal max-throughput
# deployed by: planner deploy DIR
#
# predicted for one server and 320 requests of 8192 input and 1024 output tokens, at most 64 in flight:
# TTFT mean 5,210 ms (4,100 to 6,700)
# output 1,020 tok/s (860 to 1,210)
set -euo pipefail
name=planner-33dd6efacc44-ray
running() { [[ -n "$(docker ps --quiet --filter "name=^$name\$" 2>/dev/null)" ]]; }

if ! running; then
  echo "no head runs on this node; start it with: ./head.sh" >&2
  exit 1
fi
docker exec --interactive "$name" python3 - 2 16 <<'PYTHON'
import sys

import ray

ray.init(address="auto", log_to_driver=False)
wanted_nodes, wanted_gpus = map(int, sys.argv[1:])
alive = [node for node in ray.nodes() if node["Alive"]]
gpus = int(sum(node["Resources"].get("GPU", 0) for node in alive))
for node in alive:
    print(f"{node['NodeManagerAddress']}: {int(node['Resources'].get('GPU', 0))} GPUs")
if len(alive) < wanted_nodes or gpus < wanted_gpus:
    sys.exit(f"{len(alive)} of {wanted_nodes} nodes and {gpus} of {wanted_gpus} GPUs have joined")
PYTHON
