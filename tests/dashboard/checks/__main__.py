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
PROJECTS = ("tsconfig.json", "tsconfig.worker.json")
"""Of the pages, and of the service workers, which have other globals."""


def check(kind: str, folder: Path) -> int:
    """Run the type checker or the linter; its exit code."""
    packages = folder.resolve() / "node_modules"
    if kind == "types":
        tsc = packages / "typescript" / "bin" / "tsc"
        commands = [[tsc, "--project", DASHBOARD / project] for project in PROJECTS]
    else:
        # The linter finds its packages from where its configuration is.
        config = shutil.copy(HERE / CONFIG, folder.resolve())
        script = packages / "eslint" / "bin" / "eslint.js"
        commands = [[script, "--config", config, "--max-warnings", "0", DASHBOARD / "static"]]
    return max(
        subprocess.run([node(), *command], check=False, timeout=300).returncode
        for command in commands
    )


if __name__ == "__main__":
    sys.exit(check(sys.argv[1], Path(sys.argv[2])))
