"""`evoclaw` over a data folder of the test's own: in this process, or as one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from evoclaw.cli.main import command_line
from evoclaw.cli.main import main as command


def typed(*words: str) -> int:
    """Run a command in this process; its errors are raised."""
    return command_line.main(list(words), "evoclaw", standalone_mode=False)


def main(home: Path, *arguments: str) -> int:
    """Run a command as it would be typed by the owner of a data folder."""
    before = os.environ.get("EVOCLAW_HOME")
    os.environ["EVOCLAW_HOME"] = str(home)
    try:
        return command(arguments)
    finally:
        del os.environ["EVOCLAW_HOME"]
        if before is not None:
            os.environ["EVOCLAW_HOME"] = before


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
