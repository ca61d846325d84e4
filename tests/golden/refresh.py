"""Write the golden scripts anew: ``python tests/golden/refresh.py``, then read the difference."""

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from script_plans import GOLDEN  # noqa: E402

from planner.output.scripts.files import write_folder  # noqa: E402
from planner.output.scripts.render import render_scripts  # noqa: E402

for name, emission in GOLDEN.items():
    shutil.rmtree(HERE / name, ignore_errors=True)
    write_folder(HERE / name, render_scripts(emission), force=False)
    print(HERE / name)
