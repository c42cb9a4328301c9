"""`evoclaw diff A B`: two recordings, turn by turn, and what is not the same."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import msgspec

from evoclaw.cli import exits
from evoclaw.cli.clean import one_line
from evoclaw.cli.fleet import show
from evoclaw.core.comparing import Difference, compare
from evoclaw.core.messages import JSON
from evoclaw.store.sessions.recordings import read_recording


def diff(options: Namespace, _wiring: object = None) -> int:
    """Compare; 0 says the same, 1 says that they differ."""
    a, b = (read_recording(Path(path)) for path in (options.a, options.b))
    found = list(compare(a, b))
    if options.json:
        show({"same": not found, "differences": msgspec.to_builtins(found)})
    else:
        for one in found:
            _tell(one)
        show(f"{len(found)} differences" if found else "the same, turn by turn")
    return exits.FAILED if found else exits.OK


def _tell(one: Difference) -> None:
    show(f"{f'turn {one.turn}' if one.turn else 'the run'}: {one.what}")
    show(f"  - {_shown(one.a)}")
    show(f"  + {_shown(one.b)}")


def _shown(value: JSON) -> str:
    if value is None:
        return "(none)"
    return one_line(value if isinstance(value, str) else msgspec.json.encode(value).decode(), 300)
