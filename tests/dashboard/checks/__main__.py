"""Check the dashboard's scripts: `python -m tests.dashboard.checks (types|lint) FOLDER`.

FOLDER has the npm packages that package.json pins; `make types` and `make lint` install them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import evoclaw.dashboard
from tests.providers.aimock.install import node

HERE = Path(__file__).parent
DASHBOARD = Path(evoclaw.dashboard.__file__).parent
CONFIG = "eslint.config.mjs"


def check(kind: str, folder: Path) -> int:
    """Run one of the two programs; its exit code."""
    packages = folder.resolve() / "node_modules"
    if kind == "types":
        command = [packages / "typescript" / "bin" / "tsc", "--project", DASHBOARD]
    else:
        # The linter finds its packages from where its configuration is.
        config = shutil.copy(HERE / CONFIG, folder.resolve())
        script = packages / "eslint" / "bin" / "eslint.js"
        command = [script, "--config", config, "--max-warnings", "0", DASHBOARD / "static"]
    return subprocess.run([node(), *command], check=False, timeout=300).returncode


if __name__ == "__main__":
    sys.exit(check(sys.argv[1], Path(sys.argv[2])))
