"""The `evoclaw` command: the command line on one side, the composition root on the other."""

from __future__ import annotations

import sys
from pathlib import Path

from evoclaw import wiring
from evoclaw.cli.main import main as command


def main() -> int:
    """Run the command that was typed."""
    return command(sys.argv[1:], wiring)


def dt() -> int:
    """Run the tool that the program's own name says: `dt-read`, in the skill `desktop-tools`."""
    from evoclaw.cli.dt import dt as by_hand

    return by_hand(Path(sys.argv[0]).stem, sys.argv[1:], wiring.open_toolbox)


if __name__ == "__main__":
    sys.exit(main())
