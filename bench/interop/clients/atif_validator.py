"""The public models of ATIF judge an exported run; prints the problem of each check."""

import json
import sys
from pathlib import Path

from atif import Trajectory

problems: dict[str, str] = {}
for name in sys.argv[1:]:
    try:
        found = Trajectory.model_validate_json(Path(name).read_text())
        assert found.steps, "no steps"
        problems[Path(name).stem] = ""
    except Exception as error:
        problems[Path(name).stem] = f"{type(error).__name__}: {error}"
sys.stdout.write(json.dumps(problems) + "\n")
