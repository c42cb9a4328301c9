"""What commands print: results on standard output, notes and errors on standard error."""

from __future__ import annotations

import sys

from evoclaw.cli import exits


def print_out(value: object) -> None:
    """Print a line, or a value as JSON, to standard output."""
    if not isinstance(value, str):
        import json

        value = json.dumps(value)
    sys.stdout.write(f"{value}\n")


def print_err(text: str) -> None:
    """Print a line to standard error."""
    sys.stderr.write(text + "\n")


def report_cancelled(id_: str, *, done: bool) -> int:
    """Print whether something was cancelled, or had ended before; returns the exit code."""
    if done:
        print_out(f"{id_}: cancelled")
        return exits.OK
    print_err(f"{id_}: already ended")
    return exits.FAILED
