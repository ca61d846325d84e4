"""Write the golden deployables anew: ``python tests/golden/refresh_deploy.py``, then read the difference."""

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from deployed import CASES, files_of  # noqa: E402

from planner.output.scripts.files import write_folder  # noqa: E402

shutil.rmtree(HERE / "deploy", ignore_errors=True)
for case in CASES:
    write_folder(HERE / "deploy" / case, files_of(case), force=False)
    print(HERE / "deploy" / case)
