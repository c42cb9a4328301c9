"""Shows a run: the text of the model on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from typing import TextIO

import msgspec

from evoclaw.cli.terminal_text import clean, one_line
from evoclaw.core.events import (
    ApprovalAnswered,
    CallFinished,
    CallJudged,
    CallOutput,
    CallStarted,
    ContextTrimmed,
    Event,
    Prompted,
    ReasoningDelta,
    Record,
    Replied,
    ReplyFailed,
    ReplyRetried,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
    TextDelta,
    ToolsChanged,
    TurnStarted,
)
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.ports import Sink
from evoclaw.store.sessions.recordings import encode_record

_STYLES = {"dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class JsonLinesRenderer:
    """Prints every record as a line of JSON."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def receive(self, record: Record) -> None:
        """Write one line."""
        self._out.write(encode_record(record).decode())
        self._out.flush()


class TerminalRenderer:
    """Prints text as it is generated, and a line when a call starts and ends, with its output."""

    def __init__(self, out: TextIO, err: TextIO, *, colour: bool) -> None:
        self._out, self._err, self._colour = out, err, colour
        self._shown = ""
        """The text of the model in the current turn."""
        self._last_notes: dict[str, str] = {}
        """The last printed model and tools; they are printed again only if they change."""

    def receive(self, record: Record) -> None:
        """Show one record."""
        self._show(record.event)

    def _show(self, event: Event) -> None:
        match event:
            case TextDelta(text):
                self._write(clean(text))
            case ReasoningDelta(text):
                self._err.write(self._paint(clean(text), "dim"))
                self._err.flush()
            case Replied():
                self._end_line()
            case RunFinished():
                self._finish(event)
            case CallJudged() | ApprovalAnswered() | CallStarted() | CallOutput() | CallFinished():
                self._show_call(event)
            case _:
                self._show_progress(event)

    def _show_progress(self, event: Event) -> None:
        match event:
            case TurnStarted():
                self._shown = ""
            case RunStarted(model) | RunResumed(model):
                self._note_change("model", one_line(model))
            case ToolsChanged(tools):
                names = ", ".join(tool.name for tool in tools) or "none"
                self._note_change("tools", one_line(names, 300))
            case ReplyRetried(kind, reason, _, wait):
                self._note(f"↻ {kind}, retrying in {wait:.1f} s: {one_line(reason)}", "yellow")
                self._shown = ""
            case ReplyFailed(kind, reason):
                self._note(f"✘ no reply ({kind}): {one_line(reason, 200)}", "red")
            case Prompted(_, why) if why in _ASKED:
                self._note(f"… asked the model to {_ASKED[why]}", "dim")
            case ContextTrimmed():
                self._note("… shortened the history that the model sees", "dim")
            case _:
                pass

    def _note_change(self, what: str, text: str) -> None:
        if self._last_notes.get(what) != text:
            self._last_notes[what] = text
            self._note(f"{what} {text}", "dim")

    def _show_call(self, event: Event) -> None:
        match event:
            case CallJudged(_, "deny", code, reason):
                self._note(f"⛔ denied ({code}): {one_line(reason, 200)}", "red")
            case CallJudged(_, "ask", _, reason):
                self._note(f"? {one_line(reason, 200)}", "yellow")
            case ApprovalAnswered(_, decision, reason):
                self._note(f"  {_DECIDED.get(decision, decision)} {one_line(reason)}", "yellow")
            case CallStarted(_, name, arguments):
                self._note(f"▶ {name}{_arguments(arguments)}", "cyan")
            case CallOutput(_, text):
                for line in clean(text).splitlines():
                    self._note(f"  │ {line}", "dim")
            case CallFinished(result):
                self._show_result(result)
            case _:
                pass

    def _show_result(self, result: ToolResult) -> None:
        if result.error is None:
            lines = result.text.count("\n") + bool(result.text)
            size = f"{lines} line{'s' * (lines != 1)}, {len(result.text)} characters"
            self._note(f"✔ {result.name}: {size}", "green")
        else:
            self._note(f"✘ {one_line(result.name)}: {one_line(result.text, 200)}", "red")

    def _finish(self, end: RunFinished) -> None:
        text = clean(end.text)
        if text.strip() != self._shown.strip():
            self._end_line()
            self._write(text)
        self._end_line()
        cost = "" if not end.cost else f" · ${end.cost:.4f}"
        tokens = end.usage.input + end.usage.output
        reason = f" ({one_line(end.reason, 200)})" if end.reason else ""
        colour = "green" if end.stop is StopReason.COMPLETED else "yellow"
        self._note(
            f"{end.stop}{reason} · {end.turns} turns · {end.calls} calls · {tokens} tokens{cost}",
            colour,
        )

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        self._shown += text

    def _end_line(self) -> None:
        if self._shown and not self._shown.endswith("\n"):
            self._write("\n")

    def _note(self, text: str, style: str) -> None:
        self._end_line()
        self._err.write(self._paint(text, style) + "\n")
        self._err.flush()

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._colour else text


_ASKED = {
    "confirm": "confirm that it is done",
    "continue": "continue",
    "closing": "answer without tools",
}
_DECIDED = {
    "once": "approved once",
    "session": "approved for this run",
    "deny": "denied:",
    "pending": "nobody answered yet",
}


def _arguments(arguments: dict[str, JSON]) -> str:
    shown = [f"{one_line(key, 20)}={_value(value)}" for key, value in arguments.items()]
    return f" {' '.join(shown)}" if shown else ""


def _value(value: JSON) -> str:
    return one_line(msgspec.json.encode(value).decode())


def renderer(*, json: bool) -> Sink:
    """The renderer for this process: JSON lines, or text for a terminal."""
    if json:
        return JsonLinesRenderer(sys.stdout)
    return TerminalRenderer(
        sys.stdout, sys.stderr, colour=sys.stderr.isatty() and "NO_COLOR" not in os.environ
    )
