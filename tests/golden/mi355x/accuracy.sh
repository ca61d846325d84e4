#!/usr/bin/env bash
# Measure the accuracy of the running server with lm_eval.
# (header)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

name=planner-DIGEST
running() { [[ -n "$(docker ps --quiet --filter "name=^$name\$" 2>/dev/null)" ]]; }
container_port=8000
# The server's address: docker knows the port that it was started with.
address() { docker port "$name" "$container_port/tcp" 2>/dev/null; }
healthy() { curl --silent --fail --noproxy '*' --max-time 10 --output /dev/null "http://$(address)/health"; }
task=gsm8k
result=$here/results/accuracy-DIGEST
venv=$here/.lm_eval
max_model_len=9216
needed_len=1536 # for the worked examples, the question and the answer

if [[ -d "$result" && "${FORCE:-0}" != 1 ]]; then
  echo "already measured: $result (FORCE=1 measures again)"
  exit 0
fi
if ((max_model_len < needed_len)); then
  echo "the plan's max_model_len of $max_model_len tokens is too short for $task, which needs $needed_len" >&2
  exit 1
fi
if ! running; then
  echo "$name is not running; start it with: $here/launch.sh" >&2
  exit 1
fi
if ! healthy; then
  echo "$name does not answer yet; wait until $here/launch.sh says ready, or see: docker logs $name" >&2
  exit 1
fi

# environment FOLDER MODULES REQUIREMENT...: a Python environment that can import MODULES. "complete" names what was
# installed and imported; any other environment is made anew.
environment() {
  local folder=$1 modules=$2
  shift 2
  if [[ "$(cat "$folder/complete" 2>/dev/null || true)" == "$*" ]]; then return; fi
  echo "installing $1 into $folder" >&2
  if ! python3 -m venv --clear "$folder"; then
    echo "python3 cannot make an environment; on Debian and Ubuntu: sudo apt-get install python3-venv" >&2
    exit 1
  fi
  "$folder/bin/python" -m pip install --quiet --no-cache-dir "$@"
  "$folder/bin/python" -c "import $modules"
  printf '%s\n' "$*" >"$folder/complete"
}
# NVIDIA's recipe pins lm-eval[api]==0.4.9.1, which brings torch and fails to import with transformers 5.
environment "$venv" 'lm_eval.__main__, lm_eval.evaluator, lm_eval.models.openai_completions' 'lm-eval[api]==0.4.13' datasets==5.2.0 evaluate==0.4.6 'huggingface-hub<3' 'numpy<3' 'pandas<4' transformers==5.19.0
# JSON; the server's address is added in front
arguments='{"model": "amd/Llama-3.3-70B-Instruct-FP8-KV", "num_concurrent": 64, "timeout": 600, "max_retries": 5, "tokenized_requests": false, "tokenizer_backend": "None"}'
rm -rf "$result.partial"
OPENAI_API_KEY=${VLLM_API_KEY:-} NO_PROXY=127.0.0.1,localhost no_proxy=127.0.0.1,localhost "$venv/bin/lm_eval" \
  --model local-completions \
  --tasks "$task" \
  --model_args "{\"base_url\": \"http://$(address)/v1/completions\", ${arguments#?}" \
  --output_path "$result.partial"
rm -rf "$result"
mv "$result.partial" "$result"
echo "measured: $result"
echo "published for this checkpoint:"
printf '  %s\n' 'gsm8k, flexible-extract: 0.9052 ± 0.0081 (AMD'"'"'s recipe)'
