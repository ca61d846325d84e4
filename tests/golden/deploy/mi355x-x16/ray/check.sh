#!/usr/bin/env bash
# On the first node: check that all nodes and GPUs have joined.
# (header)
set -euo pipefail
name=planner-DIGEST-ray
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
