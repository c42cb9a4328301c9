"""Formats rows as aligned columns, cleaned for a terminal.

Formats an audit record as one line.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from evoclaw.cli.clean import clean, one_line
from evoclaw.cli.output import print_out
from evoclaw.core.messages import JSON


def format_table(rows: Iterable[Sequence[str]], max_cell_chars: int = 60) -> list[str]:
    """Aligned lines; cells are cut to `max_cell_chars`, the last one to 200 characters."""
    cells = [
        [one_line(cell, max_cell_chars) for cell in row[:-1]] + [one_line(row[-1], 200)]
        for row in rows
    ]
    widths = [max((len(row[i]) for row in cells if i < len(row) - 1), default=0) for i in range(20)]
    return [
        "  ".join(
            cell if i == len(row) - 1 else cell.ljust(widths[i]) for i, cell in enumerate(row)
        ).rstrip()
        for row in cells
    ]


def print_table(rows: Iterable[Sequence[str]], if_empty: str) -> None:
    """Print the rows, or a text if there are none."""
    lines = format_table(rows)
    for line in lines or [if_empty]:
        print_out(line)


def format_time(at: JSON) -> str:
    """A time stamp as local time; empty if there is none."""
    if not isinstance(at, int | float) or not at:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def text_of(row: dict[str, JSON], name: str) -> str:
    """A value of a row as text; empty if there is none."""
    value = row.get(name)
    return "" if value is None else str(value)


def audit_line(fields: Mapping[str, JSON]) -> str:
    """Time, agent, tool or kind, result, verdict, and parameters or reason."""

    def text(name: str) -> str:
        value: JSON = fields.get(name)
        return "" if value is None else str(value)

    verdict = " ".join(filter(None, (text("verdict"), text("code"))))
    parameters = ""
    if "parameters" in fields:
        parameters = msgspec.json.encode(fields["parameters"]).decode()
    details = parameters or text("reason") or text("model")
    what = text("tool") or text("kind")
    line = f"{text('timestamp')} {text('agent_id'):12} {what:14} {text('result'):10} {verdict:16} "
    return one_line(line + details, 200) if details else clean(line).rstrip()
