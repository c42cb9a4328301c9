"""The `evoclaw` command: the command line on one side, the composition root on the other."""

from __future__ import annotations

import sys

from evoclaw import wiring
from evoclaw.cli.main import main as command


def main() -> int:
    """Run the command that was typed."""
    return command(sys.argv[1:], wiring)


if __name__ == "__main__":
    sys.exit(main())
