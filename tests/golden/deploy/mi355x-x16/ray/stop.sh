#!/usr/bin/env bash
# On any of the nodes: stop its container.
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

if running; then docker stop "$name" >/dev/null; fi
docker rm "$name" >/dev/null 2>&1 || true
echo "stopped"
