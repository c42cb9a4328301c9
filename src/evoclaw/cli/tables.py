"""Rows for people: cleaned, cut, and in columns that line up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from evoclaw.cli.clean import one_line
from evoclaw.cli.output import print_out
from evoclaw.core.messages import JSON


def lay_out(rows: Iterable[Sequence[str]], widest: int = 60) -> list[str]:
    """Lines with their cells under each other; the last cell may be as long as it is."""
    found = [
        [one_line(cell, widest) for cell in row[:-1]] + [one_line(row[-1], 200)] for row in rows
    ]
    widths = [max((len(row[i]) for row in found if i < len(row) - 1), default=0) for i in range(20)]
    return [
        "  ".join(
            cell if i == len(row) - 1 else cell.ljust(widths[i]) for i, cell in enumerate(row)
        ).rstrip()
        for row in found
    ]


def show_rows(rows: Iterable[Sequence[str]], nothing: str) -> None:
    """Print them, or that there are none."""
    lines = lay_out(rows)
    for line in lines or [nothing]:
        print_out(line)


def when(at: JSON) -> str:
    """A moment, in local time; empty if there is none."""
    if not isinstance(at, int | float) or not at:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def said(row: dict[str, JSON], name: str) -> str:
    """A value as text; empty if there is none."""
    value = row.get(name)
    return "" if value is None else str(value)
