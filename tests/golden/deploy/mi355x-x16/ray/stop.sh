#!/usr/bin/env bash
# On any of the nodes: stop its container.
# (header)
set -euo pipefail
name=planner-DIGEST-ray
running() { [[ -n "$(docker ps --quiet --filter "name=^$name\$" 2>/dev/null)" ]]; }

if running; then docker stop "$name" >/dev/null; fi
docker rm "$name" >/dev/null 2>&1 || true
echo "stopped"
