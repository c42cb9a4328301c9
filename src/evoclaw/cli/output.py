"""What commands print: results on standard output, notes and errors on standard error."""

from __future__ import annotations

import sys


def print_out(value: object) -> None:
    """Print a line, or a value as JSON, to standard output."""
    if not isinstance(value, str):
        import json

        value = json.dumps(value)
    sys.stdout.write(f"{value}\n")


def print_err(text: str) -> None:
    """Print a line to standard error."""
    sys.stderr.write(text + "\n")
