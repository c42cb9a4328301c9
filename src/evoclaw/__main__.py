"""The `evoclaw` command."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command that was typed."""
    from evoclaw.cli.main import main as command

    return command(sys.argv[1:])


def dt() -> int:
    """Run the tool that the program's own name says: `dt-read`, in the skill `desktop-tools`."""
    from pathlib import Path

    from evoclaw.cli.dt import dt as by_hand

    return by_hand(Path(sys.argv[0]).stem, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
