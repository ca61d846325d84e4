#!/usr/bin/env bash
# On the first node: check that all nodes and GPUs have joined.
#
# nvidia/Llama-3.3-70B-Instruct-FP4 on 16 x NVIDIA B200 SXM 180GB, vLLM 0.14.0
# goal: max-throughput; plan 6be76ce51404; written by planner 0.0.0
# planned by: planner recommend --goal max-throughput
# deployed by: planner deploy DIR
#
# predicted for one server and 640 requests of 1024 input and 1024 output tokens, at most 128 in flight:
# TTFT mean 5,210 ms (4,100 to 6,700)
# output 1,020 tok/s (860 to 1,210)
set -euo pipefail
name=planner-6be76ce51404-ray
running() { [[ -n "$(docker ps --quiet --filter "name=^$name\$" 2>/dev/null)" ]]; }

if ! running; then
  echo "no head runs on this machine: start it with ./head.sh" >&2
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
    sys.exit(f"{len(alive)} of {wanted_nodes} machines and {gpus} of {wanted_gpus} GPUs have joined")
PYTHON
