#!/usr/bin/env bash
# On any of the nodes: stop its container.
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

if running; then docker stop "$name" >/dev/null; fi
docker rm "$name" >/dev/null 2>&1 || true
echo "stopped"
