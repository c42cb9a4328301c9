"""Text for a terminal: without control sequences of models, tools and devices, and in columns."""

from __future__ import annotations

import os
import re
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

import msgspec

from evoclaw.cli.output import print_out
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, ToolResult, is_object

# Sequences that move the cursor, set the title, write the clipboard or hide a link's target.
_SEQUENCES = re.compile(
    r"""
      \x1b \[ [0-?]* [ -/]* [@-~]            # CSI
    | \x1b [\]PX^_] .*? (?: \x07 | \x1b\\ | \Z) # OSC, DCS, SOS, PM, APC: to their end
    | \x1b .?                                # any other escape
    | \x9b [0-?]* [ -/]* [@-~]               # CSI in one byte
    """,
    re.VERBOSE | re.DOTALL,
)
_ALLOWED_CONTROLS = "\n\t"


def clean(text: str) -> str:
    """Remove escape sequences, control characters, and characters that reorder or hide text."""
    if text.isascii() and text.isprintable():
        return text
    text = _SEQUENCES.sub("", text.replace("\r\n", "\n"))
    return "".join(
        c for c in text if c in _ALLOWED_CONTROLS or unicodedata.category(c) not in _HIDDEN
    )


_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Control, format (bidi, zero-width, tags), surrogate, private use, line separators."""


def one_line(text: str, limit: int = 100) -> str:
    """The text on one line, cleaned and cut."""
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def format_table(
    rows: Iterable[Sequence[str]], max_cell_chars: int = 60, *, colour: bool = False
) -> list[str]:
    """Aligned lines; cells are cut to `max_cell_chars`, the last one to 200 characters."""
    cells = [
        [one_line(cell, max_cell_chars) for cell in row[:-1]] + [one_line(row[-1], 200)]
        for row in rows
    ]
    columns = max((len(row) for row in cells), default=0)
    widths = [
        max((width_of(row[i]) for row in cells if i < len(row) - 1), default=0)
        for i in range(columns)
    ]
    return [
        "  ".join(
            _styled(cell, i == 0, colour=colour)
            + " " * (0 if i == len(row) - 1 else widths[i] - width_of(cell))
            for i, cell in enumerate(row)
        ).rstrip()
        for row in cells
    ]


def width_of(text: str) -> int:
    """The columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )


_STATE_COLOURS = {
    "32": ("approved", "completed", "good", "online", "ok", "yes"),
    "33": ("invited", "queued", "running", "waiting"),
    "31": ("bad", "cancelled", "error", "failed", "offline", "revoked", "stopped"),
}
"""Words that are a whole cell, by the ANSI colour of their meaning."""


def _styled(cell: str, is_first: bool, *, colour: bool) -> str:
    """A cell with its colour: names stand out, and states mean something."""
    if not colour or not cell:
        return cell
    code = next((code for code, words in _STATE_COLOURS.items() if cell in words), "")
    code = code or ("1" if is_first else "")
    return f"\x1b[{code}m{cell}\x1b[0m" if code else cell


def has_colour(stream: TextIO) -> bool:
    """Whether colours are wanted on a stream: a terminal, and the user did not refuse them."""
    refused = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not refused


def decode_input(data: bytes, source: str) -> str:
    """Text that was piped into a command; raises `ConfigError` if it is something else."""
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise ConfigError(
            f"{source} is not UTF-8 text (byte {problem.start + 1}): pipe text into the command, "
            "and let the agent read other files by their path"
        ) from None


def print_table(rows: Iterable[Sequence[str]], if_empty: str) -> None:
    """Print the rows, or a text if there are none."""
    lines = format_table(rows, colour=has_colour(sys.stdout))
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


def on_machine(name: str) -> str:
    """The machine of a call, to be put behind its tool; empty if it is not named."""
    return f" on {one_line(name)}" if name else ""


def machine_of(result: ToolResult) -> str:
    """The edge that a result came from, or several; empty for the machine of the run."""
    several = result.details.get("agents")
    if is_object(several):
        return ", ".join(several)
    return str(result.details.get("agent") or "")


def audit_line(fields: Mapping[str, JSON]) -> str:
    """Time, agent, tool and machine or kind, result, verdict, step, and parameters or reason."""

    def text(name: str) -> str:
        value: JSON = fields.get(name)
        return "" if value is None else str(value)

    verdict = " ".join(filter(None, (text("verdict"), text("code"))))
    parameters = ""
    if "parameters" in fields:
        parameters = msgspec.json.encode(fields["parameters"]).decode()
    reason = parameters or text("reason") or text("model")
    details = ": ".join(filter(None, (_step_of(fields), reason)))
    machine = "" if text("device") == text("agent_id") else text("device")
    what = (text("tool") or text("kind")) + on_machine(machine)
    line = f"{text('timestamp')} {text('agent_id'):12} {what:14} {text('result'):10} {verdict:16} "
    return one_line(line + details, 200) if details else clean(line).rstrip()


def _step_of(fields: Mapping[str, JSON]) -> str:
    """A step of evolution or of a roll-out: what it was, of which candidate, and how it ended."""
    found = [str(fields.get("what") or "")]
    if (candidate := fields.get("candidate")) is not None:
        found.append(f"of candidate {candidate}")
    if stage := fields.get("stage"):
        passed = fields.get("passed")
        found += [str(stage), "started" if passed is None else "passed" if passed else "failed"]
    if (version := fields.get("version")) is not None:
        found.append(f"version {version}")
    return " ".join(filter(None, found))
