"""nginx itself judges the balancers: of ``instances.sh`` and of ``compose.yaml``."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE.parent)]

from deployed import files_of  # noqa: E402
from script_plans import emission, plan  # noqa: E402

from planner.output.scripts.emission import needed_by  # noqa: E402


def main() -> int:
    """0 when nginx takes both files."""
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if nginx is None:
        print("nginx is missing: apt-get install nginx-light")
        return 1
    # names of compose's services are known to compose's network only
    composed = re.sub(r"vllm-(\d+):8000", r"127.0.0.1:81\1", files_of("mi355x/compose-x8")["nginx.conf"])
    own = needed_by(emission(plan()))["nginx.conf"]
    return max(_judged(nginx, "compose.yaml", composed), _judged(nginx, "instances.sh", own))


def _judged(nginx: str, whose: str, text: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nginx.conf"
        path.write_text(text)
        command = [nginx, "-t", "-q", "-p", f"{folder}/", "-e", "error.log", "-c", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"nginx -t, balancer of {whose}: {'accepted' if done.returncode == 0 else done.stderr}")
    return int(done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
