"""Write the golden scripts anew: ``python tests/golden/refresh.py``, then read the difference."""

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from script_plans import GOLDEN  # noqa: E402

from planner.scripts import render, write  # noqa: E402

for name, emission in GOLDEN.items():
    shutil.rmtree(HERE / name, ignore_errors=True)
    write(HERE / name, render(emission), force=False)
    print(HERE / name)
