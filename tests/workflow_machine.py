"""A machine on which the scripts of workflows run for real: docker, nginx, git and the network are stand-ins.

Containers are files under ``state/containers`` with the port that they were published on.
"""

import json
import signal
from collections.abc import Mapping
from pathlib import Path

from stand_ins import StandIns

from planner.output.scripts.folder import write_folder

TOOLS = (
    "awk", "basename", "bash", "cat", "cp", "cut", "dirname", "env", "grep", "head", "ln", "ls", "mkdir", "mv", "rm",
    "sed", "seq", "sh", "sort", "tail", "tee", "touch", "tr", "wc",
)  # fmt: skip
RESULT = {
    "avg_latency": 1.5, "tokens_per_second": 250.0, "completed": "PROMPTS", "output_throughput": 99.5,
    "mean_ttft_ms": 12.0, "mean_tpot_ms": 3.25,
}  # fmt: skip
_STUBS = {
    # A program in a container writes the result file that it is told to write; `fails` holds words that make it fail.
    "docker": """
previous= name= published= result= detached=0
for word in "$@"; do
  case "$previous" in
    --name) name=$word ;;
    --publish) published=${word#*:} ;;
    --output-json | --result-filename) result=${word##*/} ;;
    --num-prompts) prompts=$word ;;
  esac
  [[ "$word" == --detach ]] && detached=1
  previous=$word
done
work() {
  if [[ -e "$state/slow" ]]; then
    echo $$ >"$state/worker"
    touch "$state/working"
    exec /bin/sleep 60
  fi
  if [[ -s "$state/fails" && "$*" == *"$(<"$state/fails")"* ]]; then echo "out of memory" >&2; exit 3; fi
  if [[ -n "$result" ]]; then
    sed "s/PROMPTS/${prompts:-1}/" "$state/result" >"$state/../the plan/results/$result"
  fi
}
case "$1" in
  run)
    if ((detached)); then
      if [[ -s "$state/fails" && "$name" == *"$(<"$state/fails")" ]]; then exit 0; fi
      echo "${published%:*}" >"$state/containers/$name"
      echo 0123abcd
    else
      work "$@"
    fi ;;
  exec)
    if [[ "$*" == *'kill "$(cat'* ]]; then kill "$(<"$state/worker")"; else work "$@"; fi ;;
  ps)
    pattern=${4#name=^}
    [[ ! -e "$state/containers/${pattern%\\$}" ]] || echo 0123abcd ;;
  stop)
    rm -f "$state/containers/$2"
    if [[ -e "$state/working" ]]; then kill "$(<"$state/worker")"; fi ;;
  port) echo 127.0.0.1:8000 ;;
  image) [[ -e "$state/image" ]] && cat "$state/image" ;;
  pull | build)
    echo built >"$state/image"
    for word in "$@"; do
      if [[ "$word" == commit=* ]]; then echo "${word#commit=}" >"$state/image"; fi
    done ;;
  logs) echo "a line of the log" ;;
  info) echo "Runtimes: nvidia runc" ;;
esac
""",
    "curl": """
url=${!#}
case "$url" in
  *:8000/balancer) [[ -e "$state/balancer" ]] ;;
  */v1/completions) cat "$state/answer" ;;
  */health)
    port=${url#http://127.0.0.1:}
    port=${port%/health}
    if [[ -e "$state/sick-$port" ]]; then exit 22; fi
    grep -q -x "$port" "$state"/containers/* 2>/dev/null ;;
esac
""",
    # Runs as a process whose name holds its folder, as the real one does.
    "nginx": """
prefix=$2
case "$*" in
  *"-h"*) echo "  -e filename : set error log file" ;;
  *" -t"*) [[ ! -e "$state/nginx_bad" ]] ;;
  *"-s quit"*) kill "$(<"$prefix/nginx.pid")"; rm "$prefix/nginx.pid" "$state/balancer" ;;
  *)
    (exec -a "nginx: master process nginx -p $prefix" /bin/sleep 300) </dev/null >/dev/null 2>&1 &
    echo $! >"$prefix/nginx.pid"
    touch "$state/balancer" ;;
esac
""",
    "git": """
case "$*" in
  clone*) mkdir -p "${!#}/.git" "${!#}/scripts/vllm/reports_float16/summary" ;;
esac
""",
    "python3": """
if [[ "$*" == "-m venv "* ]]; then mkdir -p "$3/bin"; ln -sf "$state/python" "$state/hf" "$state/guidellm" "$3/bin/"; fi
""",
    "nvidia-smi": """cat "$state/nvidia" 2>/dev/null || true""",
    "sleep": "",
    "sudo": """exec "$@" """,
}


class Machine(StandIns):
    """The files of a workflow, and the containers that run."""

    def __init__(self, root: Path, files: Mapping[str, str]) -> None:
        super().__init__(root, TOOLS, _STUBS)
        (self.state / "containers").mkdir()
        for name, body in {"python": "", "hf": "", "guidellm": self._guidellm()}.items():
            self.stub(self.state / name, body)
        (self.state / "result").write_text(json.dumps(RESULT).replace('"PROMPTS"', "PROMPTS"))
        self.set(answer='{"choices":[{"text":" city that is known"}]}')
        write_folder(self.plan, files, force=False)

    @staticmethod
    def _guidellm() -> str:
        return """
for word in "$@"; do
  if [[ "$word" == kind=json,path=* ]]; then echo "{}" >"${word#kind=json,path=}"; fi
done
"""

    def serve(self) -> None:
        """As if launch.sh had started the plan's server."""
        name = next(w for w in (self.plan / "launch.sh").read_text().split() if w.startswith("name=planner-"))
        (self.state / "containers" / name.removeprefix("name=")).write_text("8000\n")

    @property
    def containers(self) -> list[str]:
        """Names of the containers that run."""
        return sorted(path.name for path in (self.state / "containers").iterdir())

    def press_ctrl_c(self, script: str, *arguments: str) -> int:
        """Start a script, wait until a container works, press Ctrl-C; the exit status."""
        self.set(slow="")
        status, _ = self.interrupt(script, "working", signal.SIGINT, *arguments)
        (self.state / "slow").unlink()
        (self.state / "working").unlink()
        return status

    def results(self) -> list[str]:
        """Finished result files."""
        return sorted(path.name for path in (self.plan / "results").glob("[!.]*.json"))
