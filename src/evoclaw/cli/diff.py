"""`evoclaw diff A B`: compare two recorded runs turn by turn."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from evoclaw.cli import exits
from evoclaw.cli.options import FILE, CliCommand, json_option
from evoclaw.cli.output import print_out
from evoclaw.cli.terminal_text import one_line
from evoclaw.core.messages import JSON
from evoclaw.core.run_comparison import Difference, compare


@click.command(cls=CliCommand)
@click.argument("a", type=FILE, metavar="A", help="A recording of `evoclaw run`")
@click.argument("b", type=FILE, metavar="B", help="Another recording")
@json_option()
def diff(a: Path, b: Path, *, as_json: bool) -> int:
    """Compare two recordings: 0 if they are the same, 1 if they differ."""
    from evoclaw.wiring.record_key import open_recording

    found = list(compare(open_recording(a), open_recording(b)))
    if as_json:
        print_out({"same": not found, "differences": msgspec.to_builtins(found)})
    else:
        for difference in found:
            _print_difference(difference)
        print_out(f"{len(found)} differences" if found else "the same, turn by turn")
    return exits.FAILED if found else exits.OK


def _print_difference(difference: Difference) -> None:
    print_out(f"{f'turn {difference.turn}' if difference.turn else 'the run'}: {difference.what}")
    print_out(f"  - {_value_text(difference.a)}")
    print_out(f"  + {_value_text(difference.b)}")


def _value_text(value: JSON) -> str:
    if value is None:
        return "(none)"
    return one_line(value if isinstance(value, str) else msgspec.json.encode(value).decode(), 300)
