"""The card that shows a call which waits for an approval: what, where, why, and what `a` covers."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from evoclaw.cli.service_api import PendingApprovalRow
from evoclaw.cli.terminal import format_arguments
from evoclaw.cli.terminal_text import clean, on_machine, one_line
from evoclaw.core.messages import JSON, is_object

if TYPE_CHECKING:
    from rich.console import RenderableType

    from evoclaw.cli.markdown_view import Painter

MAX_CARD_LINES = 40
"""Lines of a command or a diff on a card; of a longer one the beginning and the end are shown."""


def draw_card(call: PendingApprovalRow, painter: Painter, columns: int) -> str:
    """The card as lines for a terminal."""
    from rich.text import Text

    from evoclaw.cli.markdown_view import note

    body: list[RenderableType] = [_subject(call), Text()]
    body.append(note("why", clean(call.reason)))
    if call.covers:
        body.append(note("always covers", clean(call.covers)))
    title = f"{one_line(call.tool)}{on_machine(call.machine)} wants to run"
    return painter.card(title, body, columns)


def _subject(call: PendingApprovalRow) -> RenderableType:
    """The command, the diff, or the arguments of a call."""
    from rich.console import Group
    from rich.text import Text

    from evoclaw.cli.markdown_view import code, diff_lines

    tool, given = _innermost(call)
    if (diff := _diff(tool, given)) is not None:
        path = given.get("path")
        changed = diff_lines(_cut(diff))
        return Group(Text(one_line(str(path), 200), "bold"), changed) if path else changed
    command = given.get("command")
    if not isinstance(command, str):
        return Text(format_arguments(given))
    rest = {name: value for name, value in given.items() if name != "command"}
    shown = code("\n".join(_cut(clean(command).splitlines())), "bash")
    return Group(shown, Text(format_arguments(rest))) if rest else shown


def _innermost(call: PendingApprovalRow) -> tuple[str, dict[str, JSON]]:
    """The tool and its arguments; those of the tool on an edge if the call names one."""
    match call.tool, call.arguments:
        case "edge_call", {"action": str(action), "params": params} if is_object(params):
            return action, params
        case _:
            return call.tool, call.arguments


def _diff(tool: str, given: dict[str, JSON]) -> list[str] | None:
    """What a call changes in files; None if it changes none, or its arguments are unusual."""
    match tool, given:
        case "edit", {"old_string": str(old), "new_string": str(new)}:
            lines = difflib.unified_diff(
                clean(old).splitlines(), clean(new).splitlines(), lineterm="", n=3
            )
            return list(lines)[2:]
        case "write", {"content": str(content)}:
            return [f"+{line}" for line in clean(content).splitlines()]
        case "apply_patch", {"patch": str(patch)}:
            return clean(patch).splitlines()
        case _:
            return None


def _cut(lines: list[str]) -> list[str]:
    hidden = len(lines) - MAX_CARD_LINES
    if hidden <= 0:
        return lines
    half = MAX_CARD_LINES // 2
    return [*lines[:half], f"[… {hidden} lines not shown …]", *lines[-half:]]
