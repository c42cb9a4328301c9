"""Shows a run in a chat: Markdown, one line for each call and each result, and what runs now."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from textwrap import wrap
from typing import TYPE_CHECKING

from evoclaw.cli.render import CTRL_C_HINT, TerminalRenderer
from evoclaw.cli.screen_text import cut_to_width
from evoclaw.cli.terminal_text import clean, on_machine, one_line
from evoclaw.core.events import (
    CallFinished,
    CallJudged,
    CallOutput,
    CallStarted,
    Event,
    ReasoningDelta,
    Record,
    Replied,
    RunFinished,
    RunResumed,
    RunStarted,
    ToolsChanged,
    TurnStarted,
)

if TYPE_CHECKING:
    from evoclaw.cli.markdown_view import MarkdownStream, Painter

SPINNER_DELAY_S = 0.3
"""Seconds after which something that runs is shown: what is faster needs no line."""
SPINNER_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPINNER_FRAMES_PER_S = 10
MAX_LIVE_OUTPUT_LINES = 4
"""Lines of the output of a running call that are shown while it runs."""
MAX_PRINTED_OUTPUT_LINES = 6
"""Lines of the output of a call that stay on the screen when it has ended."""
MAX_LIVE_MARKDOWN_CHARS = 8_000
"""Of a longer unfinished block, the end is shown as plain text until it is finished."""
MAX_KEPT_OUTPUTS = 50
"""Results that `/output` can show."""
MAX_KEPT_OUTPUT_CHARS = 200_000
_ONE_LINE_MARKS = ("▶", "✔", "  │")
"""Lines that are cut at the width of the terminal; others, such as reasons, are wrapped."""


@dataclass
class ShownCall:
    """A call that has no result yet."""

    name: str
    machine: str
    what: str
    since: float
    lines: deque[str] = field(default_factory=lambda: deque[str](maxlen=MAX_PRINTED_OUTPUT_LINES))
    """The last lines of its output."""
    count: int = 0
    """Lines of its output so far."""
    partial: str = ""
    """The end of its output, if that is no whole line."""


@dataclass
class KeptOutput:
    """The result of a call, for `/output`."""

    title: str
    text: str


class SessionFigures:
    """Tokens and cost of the runs of a session."""

    def __init__(self) -> None:
        self._runs: dict[str, tuple[int, float]] = {}

    def set(self, run_id: str, tokens: int, cost: float | None) -> None:
        """The figures of a run so far."""
        self._runs[run_id] = (tokens, cost or 0.0)

    def add(self, run_id: str, tokens: int, cost: float | None) -> None:
        """Add the figures of a reply to those of its run."""
        before, spent = self._runs.get(run_id, (0, 0.0))
        self._runs[run_id] = (before + tokens, spent + (cost or 0.0))

    def clear(self) -> None:
        """Forget all runs: another session begins."""
        self._runs.clear()

    @property
    def tokens(self) -> int:
        """Of all runs."""
        return sum(tokens for tokens, _ in self._runs.values())

    @property
    def cost(self) -> float:
        """In dollars, of all runs."""
        return sum(cost for _, cost in self._runs.values())


class ChatView(TerminalRenderer):
    """Shows the records of a run above the input, and what runs now between the two."""

    def __init__(
        self,
        print_above: Callable[[str], None],
        columns: Callable[[], int],
        *,
        colour: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show runs.

        Args:
            print_above: Prints text above the input.
            columns: The width of the terminal.
            colour: Whether to use colours.
            clock: In seconds.
        """
        super().__init__(sys.stdout, sys.stderr, colour=colour, give_up=CTRL_C_HINT, attended=True)
        self._print, self._columns, self._clock = print_above, columns, clock
        self._is_redirected = not sys.stdout.isatty()
        self.figures = SessionFigures()
        self.model = ""
        """The model of the last run."""
        self.outputs: deque[KeptOutput] = deque(maxlen=MAX_KEPT_OUTPUTS)
        """The results of the last calls, the newest last."""
        self._calls: dict[str, ShownCall] = {}
        self._asked_since: float | None = None
        """When the model was asked for the reply that is awaited."""
        self._reasoning = ""
        self._painter: Painter | None = None
        self._stream: MarkdownStream | None = None
        self._is_first_block = True
        self._drawn: tuple[tuple[str, int], str] = (("", 0), "")

    @property
    def painter(self) -> Painter:
        """Lays out Markdown and cards."""
        if self._painter is None:
            from evoclaw.cli.markdown_view import Painter

            self._painter = Painter(colour=self._colour)
        return self._painter

    def receive(self, record: Record) -> None:
        """Show one record."""
        match event := record.event:
            case ReasoningDelta(text):
                self._reasoning = (self._reasoning + clean(text))[-MAX_LIVE_MARKDOWN_CHARS:]
            case CallJudged(_, "ask"):
                self._end_line()  # the card says why
            case ToolsChanged():
                pass
            case CallOutput(call_id, text):
                self._add_output(call_id, clean(text))
            case _:
                self._note_state(event, record.run_id)
                super().receive(record)

    def stop(self) -> None:
        """No run is shown any more."""
        self._end_line()
        self._calls.clear()
        self._asked_since, self._reasoning = None, ""

    def print_markdown(self, text: str) -> None:
        """Print a whole text above the input."""
        self._print(self.painter.markdown(text, self._columns()))

    def live(self, columns: int, rows: int) -> str:
        """What runs now: the unfinished block of the answer, output of calls, and a spinner."""
        lines = self._unfinished_lines(columns)
        now = self._clock()
        for call in self._calls.values():
            shown = [*call.lines, *([call.partial] if call.partial else [])]
            for line in shown[-MAX_LIVE_OUTPUT_LINES:]:
                lines.append(self._paint(cut_to_width(f"  │ {line}", columns), "dim"))
        lines += [self._paint(cut_to_width(text, columns), "cyan") for text in self._spinners(now)]
        return "\n".join(lines[-rows:])

    def _spinners(self, now: float) -> list[str]:
        frame = SPINNER_FRAMES[int(now * SPINNER_FRAMES_PER_S) % len(SPINNER_FRAMES)]
        if self._calls:
            return [
                f"{frame} {call.name}{on_machine(call.machine)} · {now - call.since:.0f} s"
                + (f" · {call.what}" if call.what else "")
                for call in islice(self._calls.values(), 3)
                if now - call.since >= SPINNER_DELAY_S
            ]
        since = self._asked_since
        if since is None or now - since < SPINNER_DELAY_S:
            return []
        name = self.model or "the model"
        doing = f"{name} is thinking" if self._reasoning else f"waiting for {name}"
        doing = f"{name} is writing" if self._shown else doing
        thought = one_line(self._reasoning[-300:], 300) if not self._shown else ""
        text = f"{frame} {doing} · {now - since:.0f} s"
        return [f"{text} · …{thought[-60:]}" if thought else text]

    def _unfinished_lines(self, columns: int) -> list[str]:
        rest = "" if self._stream is None or self._is_redirected else self._stream.rest
        if not rest.strip():
            return []
        if self._drawn[0] != (rest, columns):
            if len(rest) > MAX_LIVE_MARKDOWN_CHARS:
                drawn = "\n".join(
                    cut_to_width(line, columns) for line in rest[-2_000:].splitlines()[1:]
                )
            else:
                drawn = self.painter.markdown(rest, columns)
            self._drawn = ((rest, columns), drawn)
        lines = self._drawn[1].splitlines()
        return lines if self._is_first_block else ["", *lines]

    def _note_state(self, event: Event, run_id: str) -> None:
        """Keep what the live part and the status line show."""
        match event:
            case RunStarted(model) | RunResumed(model):
                self.model = one_line(model)
                self._asked_since = self._clock()
            case TurnStarted():
                self._asked_since, self._reasoning = self._clock(), ""
            case Replied(reply):
                self._asked_since, self._reasoning = None, ""
                usage = reply.usage
                self.figures.add(run_id, usage.input + usage.output, reply.cost)
            case RunFinished(usage=usage, cost=cost):
                self._asked_since, self._reasoning = None, ""
                self._calls.clear()
                if tokens := usage.input + usage.output:
                    self.figures.set(run_id, tokens, cost)
            case CallStarted(call_id, name, arguments, machine=machine):
                what = next((v for v in arguments.values() if isinstance(v, str)), "")
                self._calls[call_id] = ShownCall(name, machine, one_line(what), self._clock())
            case _:
                pass

    def _show_progress(self, event: Event) -> None:
        if not isinstance(event, RunStarted | RunResumed):
            super()._show_progress(event)  # the status line shows the model

    def _show_call(self, event: Event) -> None:
        if isinstance(event, CallFinished):
            result = event.result
            call = self._calls.pop(result.call_id, None)
            title = f"{one_line(result.name)}{on_machine(call.machine if call else '')}"
            self.outputs.append(KeptOutput(title, clean(result.text)[:MAX_KEPT_OUTPUT_CHARS]))
            if call is not None:
                self._print_output(call)
        super()._show_call(event)

    def _add_output(self, call_id: str, text: str) -> None:
        call = self._calls.get(call_id)
        if call is None:
            return
        *lines, call.partial = (call.partial + text).split("\n")
        call.lines.extend(lines)
        call.count += len(lines)

    def _print_output(self, call: ShownCall) -> None:
        """Print the end of the output of a call, and how to see the rest."""
        if call.partial:
            call.lines.append(call.partial)
            call.count += 1
        if hidden := call.count - len(call.lines):
            self._note(f"  │ … {hidden} more lines; /output shows all", "dim")
        for line in call.lines:
            self._note(f"  │ {line}", "dim")

    def _write(self, text: str) -> None:
        self._shown += text
        if self._is_redirected:
            self._out.write(text)
            self._out.flush()
            return
        if self._stream is None:
            from evoclaw.cli.markdown_view import MarkdownStream

            self._stream = MarkdownStream()
        self._print_block(self._stream.feed(text))

    def _print_block(self, text: str) -> None:
        if text.strip():
            self._print(("" if self._is_first_block else "\n") + self._painted(text))
            self._is_first_block = False

    def _painted(self, text: str) -> str:
        return self.painter.markdown(text, self._columns())

    def _end_line(self) -> None:
        """Print the unfinished block: something else follows."""
        if self._is_redirected:
            super()._end_line()
        elif self._stream is not None:
            self._print_block(self._stream.take_rest())
            self._is_first_block = True

    def _note(self, text: str, style: str) -> None:
        self._end_line()
        columns = self._columns()
        if text.startswith(_ONE_LINE_MARKS):
            lines = [cut_to_width(text, columns)]
        else:
            lines = wrap(text, columns, subsequent_indent="  ") or [""]
        self._print("".join(self._paint(line, style) + "\n" for line in lines))


def uses_colour() -> bool:
    """Whether the terminal of this process gets colours."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
