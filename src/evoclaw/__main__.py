"""The `evoclaw` command."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the `evoclaw` command line."""
    from evoclaw.cli.main import main as command

    return command(sys.argv[1:])


def dt() -> int:
    """Run the tool named by the program, such as `dt-read`, of the skill `desktop-tools`."""
    from pathlib import Path

    from evoclaw.cli.dt import dt as run_tool

    return run_tool(Path(sys.argv[0]).stem, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
