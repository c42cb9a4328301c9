"""Shows a run: the text of the model on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

import msgspec

from evoclaw.cli.progress import ProgressLine
from evoclaw.cli.terminal_text import clean, machine_of, on_machine, one_line
from evoclaw.core.events import (
    ApprovalAnswered,
    CallDelayed,
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
from evoclaw.core.ports import Decision, Sink
from evoclaw.store.sessions.recordings import encode_record

CTRL_C_HINT = "Ctrl-C to give up"
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

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        *,
        colour: bool,
        give_up: str = CTRL_C_HINT,
        attended: bool = False,
        progress: ProgressLine | None = None,
    ) -> None:
        """Print to two streams.

        Args:
            out: For the text of the model.
            err: For everything else.
            colour: Whether to use colours.
            give_up: How the user ends a call that waits.
            attended: Whether the user is asked here as soon as the run waits for an answer.
            progress: Says what the run waits for; None if something else does.
        """
        self._out, self._err, self._colour, self._give_up = out, err, colour, give_up
        self._attended, self._progress = attended, progress
        self._model, self._has_replied = "", False
        self._machines: dict[str, str] = {}
        """The machines of the calls that run, by call id."""
        self._shown = ""
        """The text of the model in the current turn."""
        self._failed_reply: tuple[str, str] | None = None
        """Why the model gave no reply, until it is known whether the answer of the run says so."""
        self._last_notes: dict[str, str] = {}
        """The last printed model and tools; they are printed again only if they change."""

    def receive(self, record: Record) -> None:
        """Show one record."""
        if self._progress is not None:
            self._progress.stop()
        self._show(record)
        if self._progress is not None and (text := self._awaited(record.event)):
            self._progress.start(text)

    def _show(self, record: Record) -> None:
        if not isinstance(record.event, RunFinished):
            self._show_failed_reply()
        match event := record.event:
            case TextDelta(text):
                self._write(clean(text))
            case ReasoningDelta(text):
                self._err.write(self._paint(clean(text), "dim"))
                self._err.flush()
            case Replied():
                self._end_line()
            case RunFinished(StopReason.WAITING) if self._attended:
                self._shown = ""  # the question follows
            case RunFinished():
                self._finish(event)
            case CallDelayed():
                self._show_delay(event, record.at)
            case CallJudged() | ApprovalAnswered() | CallStarted() | CallOutput() | CallFinished():
                self._show_call(event)
            case _:
                self._show_progress(event)

    def _awaited(self, event: Event) -> str:
        """What the run waits for after an event; empty if something is shown already."""
        match event:
            case RunStarted(model) | RunResumed(model):
                self._model = one_line(model)
                return f"waiting for {self._model}"
            case TurnStarted() | ToolsChanged() | ReplyRetried():
                loads = self._model.startswith("embedded/") and not self._has_replied
                return f"{'loading' if loads else 'waiting for'} {self._model}" * bool(self._model)
            case Replied():
                self._has_replied = True
                return ""
            case CallFinished() if self._machines:
                return f"{len(self._machines)} more calls run"
            case CallStarted(name=name, machine=machine) if name != "question":
                return f"{one_line(name)}{on_machine(machine)} runs"
            case _:
                return ""

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
                self._failed_reply = (kind, reason)
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
            case CallJudged(_, "deny", code, reason, machine):
                where = on_machine(machine)
                self._note(f"⛔ denied{where} ({code}): {one_line(reason, 200)}", "red")
            case CallJudged(_, "ask", _, reason, machine):
                where = f"{on_machine(machine)[1:]}: " if machine else ""
                self._note(f"? {where}{one_line(reason, 200)}", "yellow")
            case ApprovalAnswered(_, Decision.PENDING):
                pass  # the end of the run says what it waits for
            case ApprovalAnswered(_, _, _, dict()):
                self._note("  approved once, with the arguments that the user edited", "yellow")
            case ApprovalAnswered(_, decision, reason):
                self._note(f"  {_decided(decision, one_line(reason))}", "yellow")
            case CallStarted(call_id, name, arguments, machine=machine):
                self._machines[call_id] = machine
                self._note(f"▶ {name}{on_machine(machine)}{_arguments(arguments)}", "cyan")
            case CallOutput(_, text):
                for line in clean(text).splitlines():
                    self._note(f"  │ {line}", "dim")
            case CallFinished(result):
                self._show_result(result)
            case _:
                pass

    def _show_delay(self, event: CallDelayed, at: float) -> None:
        """Say that the machine of a call is offline, until when the call waits, and what to do."""
        machine = one_line(event.machine)
        if not event.seconds:
            self._note(f"{machine} is online again", "green")
            return
        until = time.strftime("%H:%M:%S", time.localtime(at + event.seconds))
        text = f"{machine} went offline; the call waits until {until} · {self._give_up}"
        self._note(text, "yellow")

    def _show_result(self, result: ToolResult) -> None:
        started_on = self._machines.pop(result.call_id, "")
        where = on_machine(machine_of(result) or started_on)
        if result.error is None:
            lines = result.text.count("\n") + bool(result.text)
            size = f"{lines} line{'s' * (lines != 1)}, {len(result.text)} characters"
            self._note(f"✔ {result.name}{where}: {size}", "green")
        else:
            self._note(f"✘ {one_line(result.name)}{where}: {one_line(result.text, 200)}", "red")

    def _show_failed_reply(self, said: str = "") -> None:
        """Print why there was no reply, unless that was said already."""
        if self._failed_reply is None:
            return
        kind, reason = self._failed_reply
        self._failed_reply = None
        why = "" if _says(said, reason) else f": {one_line(reason, 200)}"
        self._note(f"✘ no reply ({kind}){why}", "red")

    def _finish(self, end: RunFinished) -> None:
        self._show_failed_reply(said=end.text)
        text = clean(end.text)
        if text.strip() != self._shown.strip():
            self._end_line()
            self._write(text)
        self._end_line()
        cost = "" if not end.cost else f" · ${end.cost:.4f}"
        tokens = end.usage.input + end.usage.output
        is_told = not end.reason or _says(end.text, end.reason)
        reason = "" if is_told else f" ({one_line(end.reason, 200)})"
        colour = "green" if end.stop is StopReason.COMPLETED else "yellow"
        self._note(
            f"{end.stop}{reason} · {end.turns} turns · {end.calls} calls · {tokens} tokens{cost}",
            colour,
        )
        self._shown = ""

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
    "session": "approved for this session",
    "deny": "denied",
}


def _decided(decision: str, reason: str) -> str:
    """The answer to a question, with its reason if that says more."""
    text = _DECIDED.get(decision, decision)
    return text if reason in ("", text) else f"{text}: {reason}"


def _says(text: str, reason: str) -> bool:
    """Whether a text contains the reason; the full stop at its end does not matter."""
    return reason.strip().rstrip(".") in text


def _arguments(arguments: dict[str, JSON]) -> str:
    shown = [f"{one_line(key, 20)}={_value(value)}" for key, value in arguments.items()]
    return f" {' '.join(shown)}" if shown else ""


def _value(value: JSON) -> str:
    return one_line(msgspec.json.encode(value).decode())


def answer_hint(end: RunFinished, session_id: str) -> str:
    """Where the user answers what a run waits for; empty if the end of the run says that."""
    if end.stop is not StopReason.WAITING or "evoclaw approvals" in end.reason:
        return ""
    return f"answer it in a terminal: evoclaw chat --session {session_id}"


def renderer(
    *,
    json: bool,
    give_up: str = CTRL_C_HINT,
    attended: bool = False,
    progress: ProgressLine | None = None,
) -> Sink:
    """The renderer for this process: JSON lines, or text for a terminal."""
    if json:
        return JsonLinesRenderer(sys.stdout)
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    return TerminalRenderer(
        sys.stdout,
        sys.stderr,
        colour=colour,
        give_up=give_up,
        attended=attended,
        progress=progress or ProgressLine(),
    )
