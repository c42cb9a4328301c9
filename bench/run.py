"""Start the suite: `python bench/run.py` is `python -m bench.suite.main` from any directory."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # The suite is a package, but a script has its own folder on the path instead of the root.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("bench.suite.main", run_name="__main__")
