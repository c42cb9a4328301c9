"""The terminal of a chat: output above, then what runs now, the input, and a status line.

Beside `chat_completion` and `screen_text`, the only module that uses `prompt_toolkit`. Nothing is
printed past it while it runs: what others write to standard output and standard error appears above
the input too.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from prompt_toolkit.application import Application, in_terminal
from prompt_toolkit.application.current import set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.containers import (
    ConditionalContainer,
    HSplit,
    VerticalAlign,
    Window,
)
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.layout import Layout
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar

from evoclaw.cli.chat_completion import Suggest, SuggestionCompleter, complete
from evoclaw.cli.chat_history import append_history, read_history
from evoclaw.cli.editor import edit_in_program
from evoclaw.cli.screen_text import PrintedAbove, cut_to_width, wrap_lines
from evoclaw.core.errors import ConfigError

PROMPT, CONTINUATION = "> ", "… "
MAX_INPUT_ROWS = 10
"""Rows of the input; a longer message scrolls in them."""
MAX_MENU_ROWS = 8
TYPED_AHEAD_S = 0.5
"""Seconds without a key after which a question can be answered: earlier keys are the draft's."""
KEPT_ROWS = 6
"""Rows that what runs now leaves for the input and the status line."""


@dataclass(eq=False)
class _Question:
    """A question that the user answers with one key, or with a line."""

    text: str
    keys: str
    """The keys that answer it; empty: a line does."""
    answer: asyncio.Future[str]
    is_open: bool = False
    """Whether keys answer it already."""
    has_early_keys: bool = False
    timer: asyncio.TimerHandle | None = None


class ChatScreen:
    """Draws a chat at a terminal and reads what its user types."""

    def __init__(
        self,
        *,
        history: Path,
        suggest: Suggest,
        live: Callable[[int, int], str],
        status: Callable[[], str],
        colour: bool,
    ) -> None:
        """Draw on standard error, read from standard input.

        Args:
            history: The file of typed messages.
            suggest: What the Tab key offers.
            live: What runs now, for a number of columns and rows, with ANSI styles.
            status: The status line.
            colour: Whether to use colours.
        """
        self._history, self._live, self._status = history, live, status
        self.on_message: Callable[[str], None] = _ignore
        """Called with each message that the user sends."""
        self.on_interrupt: Callable[[bool], None] = _ignore
        """Called at Ctrl-C with whether a text was discarded."""
        self.on_end: Callable[[], None] = _ignore
        """Called at Ctrl-D without a text."""
        self._stream = sys.stderr
        self._pending: list[str] = []
        self._question: _Question | None = None
        self._answered_at = 0.0
        """When a key answered the last question …"""
        self._draft_then = ""
        """… and what the draft was."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flushing = False
        self._is_suspended = False
        """Whether another program has the terminal."""
        self._suggestions = SuggestionCompleter(suggest)
        self._message = Buffer(
            multiline=True,
            history=InMemoryHistory(read_history(history)),
            completer=self._suggestions,
            complete_while_typing=Condition(self._shows_commands),
        )
        self._answer = Buffer(multiline=True)
        # Not asked where the cursor is: the status line is below the input, not at the bottom.
        output = Vt100_Output.from_pty(self._stream)
        output.enable_cpr = False
        search = SearchToolbar()
        self._input = BufferControl(self._message, search_buffer_control=search.control)
        self._answering = BufferControl(self._answer)
        self._keys_only = FormattedTextControl(self._question_text, focusable=True)
        self._app: Application[None] = Application(
            Layout(self._container(search), focused_element=self._input),
            key_bindings=self._bindings(),
            style=Style.from_dict(_STYLE if colour else _STYLE_WITHOUT_COLOUR),
            output=output,
            erase_when_done=True,
        )

    async def run(self) -> None:
        """Draw and read until `close`."""
        self._loop = asyncio.get_running_loop()
        with self._instead_of_the_streams():
            try:
                with suppress(EOFError):  # the terminal was closed
                    await self._app.run_async()
            finally:
                self._loop = None
                self._write_now("".join(self._pending))
                self._pending.clear()

    def close(self) -> None:
        """End `run`."""
        if self._app.is_running and not self._app.future.done():  # type: ignore[union-attr]
            self._app.exit()

    @property
    def columns(self) -> int:
        """The width of the terminal."""
        return max(self._app.output.get_size().columns, 10)

    @property
    def is_asking(self) -> bool:
        """Whether a question waits for its answer."""
        return self._question is not None

    def print(self, text: str) -> None:
        """Print above the input; an incomplete last line waits for its end."""
        self._pending.append(text)
        if self._loop is None:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon_threadsafe(self._flush)

    def wrapped(self, text: str) -> str:
        """The text with its long lines broken between words."""
        return wrap_lines(text, self.columns)

    def refresh(self) -> None:
        """Draw what runs now, and the status line, again."""
        self._app.invalidate()

    async def ask_key(self, text: str, keys: str) -> str:
        """Ask a question that one of these keys answers; keys that were typed ahead do not."""
        return await self._ask(text, keys)

    async def ask_line(self, text: str, draft: str = "", *, at_once: bool = False) -> str:
        """Ask for a text.

        Args:
            text: The question.
            draft: The text to start from.
            at_once: Whether the user expects the question, so that no key was typed ahead.
        """
        self._answer.text = draft
        self._answer.cursor_position = len(draft)
        return await self._ask(text, "", at_once=at_once)

    async def edit_text(self, text: str, draft: str, *, suffix: str) -> str:
        """Have the user edit a text, in the program that `VISUAL` or `EDITOR` names or here.

        Args:
            text: What to do, if it is edited here.
            draft: The text to start from.
            suffix: The ending of the file that the program opens.
        """
        program = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if not program:
            return await self.ask_line(text, draft, at_once=True)
        with set_app(self._app):
            async with in_terminal():
                self._is_suspended = True
                try:
                    return await edit_in_program(program, draft, suffix)
                finally:
                    self._is_suspended = False
                    self.print("")

    async def _ask(self, text: str, keys: str, *, at_once: bool = False) -> str:
        loop = asyncio.get_running_loop()
        question = self._question = _Question(text, keys, loop.create_future())
        self._app.layout.focus(self._keys_only)
        if at_once:
            self._open_question(question)
        else:
            self._wait_for_quiet(question)
        self.refresh()
        try:
            return await question.answer
        finally:
            if question.timer is not None:
                question.timer.cancel()
            self._question = None
            self._app.layout.focus(self._input)
            self.refresh()

    def _wait_for_quiet(self, question: _Question) -> None:
        if question.timer is not None:
            question.timer.cancel()
        loop = asyncio.get_running_loop()
        question.timer = loop.call_later(TYPED_AHEAD_S, self._open_question, question)

    def _open_question(self, question: _Question) -> None:
        question.is_open = True
        if not question.keys:
            self._app.layout.focus(self._answering)
        self.refresh()

    def _key_pressed(self, event: KeyPressEvent) -> None:
        """A key while a question is shown that no line answers yet."""
        question, data = self._question, event.data
        if question is None:
            return
        if not question.is_open:
            question.has_early_keys = True
            self._wait_for_quiet(question)
            self._add_to_draft(event.key_sequence[-1].key, data)
        elif data.lower() in question.keys and data and not question.answer.done():
            question.answer.set_result(data.lower())
            self._answered_at = asyncio.get_running_loop().time()
            self._draft_then = self._message.text

    def _add_to_draft(self, key: Keys | str, data: str) -> None:
        if key == Keys.Backspace:
            self._message.delete_before_cursor()
        elif key == Keys.BracketedPaste:
            self._message.insert_text(data.replace("\r\n", "\n").replace("\r", "\n"))
        elif data.isprintable():
            self._message.insert_text(data)

    def _flush(self) -> None:
        self._flushing = False
        if self._is_suspended:
            return
        text = "".join(self._pending)
        complete, newline, rest = text.rpartition("\n")
        self._pending = [rest] if rest else []
        if not newline:
            return
        if self._loop is None or not self._app.is_running:
            self._write_now(complete + newline)
            return
        self._app.renderer.erase()
        self._app.output.write_raw((complete + newline).replace("\n", "\r\n"))
        self._app.output.flush()
        self._app.invalidate()

    def _write_now(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    @contextmanager
    def _instead_of_the_streams(self) -> Generator[None]:
        """Print above the input what is written to the terminal meanwhile."""
        before = sys.stdout, sys.stderr
        above = PrintedAbove(lambda text: self.print(self.wrapped(text)))
        if sys.stdout.isatty():
            sys.stdout = above
        sys.stderr = above
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before

    def _container(self, search: SearchToolbar) -> HSplit:
        asks = Condition(lambda: self._question is not None)
        reads_line = Condition(
            lambda: (
                self._question is not None and self._question.is_open and not self._question.keys
            )
        )
        rows = Dimension(min=1, max=MAX_INPUT_ROWS)
        return HSplit(
            [
                ConditionalContainer(
                    Window(FormattedTextControl(self._live_text), dont_extend_height=True),
                    Condition(lambda: bool(self._live_rows())),
                ),
                ConditionalContainer(
                    Window(self._keys_only, dont_extend_height=True, wrap_lines=True), asks
                ),
                ConditionalContainer(
                    Window(
                        self._answering,
                        height=rows,
                        dont_extend_height=True,
                        wrap_lines=True,
                        get_line_prefix=_line_prefix,
                    ),
                    reads_line,
                ),
                ConditionalContainer(
                    Window(
                        self._input,
                        height=rows,
                        dont_extend_height=True,
                        wrap_lines=True,
                        get_line_prefix=_line_prefix,
                    ),
                    ~asks,
                ),
                search,
                CompletionsMenu(max_height=MAX_MENU_ROWS),
                Window(
                    FormattedTextControl(self._status_text),
                    height=1,
                    dont_extend_height=True,
                    style="class:status",
                ),
            ],
            align=VerticalAlign.TOP,
        )

    def _live_rows(self) -> str:
        size = self._app.output.get_size()
        return self._live(max(size.columns, 10), max(size.rows - KEPT_ROWS, 1))

    def _live_text(self) -> ANSI:
        return ANSI(self._live_rows().removesuffix("\n"))

    def _question_text(self) -> StyleAndTextTuples:
        if self._question is None:
            return []
        if self._question.is_open:
            return [("class:question", self._question.text)]
        is_typing = self._question.has_early_keys
        return [("class:note", "(you are typing: pause to see the question)" if is_typing else "")]

    def _status_text(self) -> StyleAndTextTuples:
        return [("class:status", cut_to_width(self._status(), self.columns))]

    def _shows_commands(self) -> bool:
        text = self._message.document.text_before_cursor
        return text.startswith("/") and " " not in text and "\n" not in text

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        keys_only = Condition(
            lambda: (
                self._question is not None
                and not (self._question.is_open and not self._question.keys)
            )
        )
        typing = Condition(lambda: self._app.layout.has_focus(self._input))
        answering = Condition(lambda: self._app.layout.has_focus(self._answering))
        typing_nothing = Condition(
            lambda: self._app.layout.has_focus(self._input) and not self._message.text
        )
        bindings.add(Keys.Any, filter=keys_only, eager=True)(self._key_pressed)

        def bind(keys: str, action: Callable[[], None], when: Condition | None = None) -> None:
            """At these keys, and always if no condition is given, do something."""

            def act(_: KeyPressEvent) -> None:
                action()

            condition = Condition(lambda: True) if when is None else when
            bindings.add(*keys.split(), filter=condition, eager=when is None)(act)

        # In raw mode Enter is `c-m`; a line feed is what a paste without brackets has.
        for key in ("enter", "c-j"):
            bind(key, lambda: self._enter(self._message), typing)
            bind(key, lambda: self._enter(self._answer), answering)
        bind("escape enter", lambda: self._message.insert_text("\n"), typing)
        bind("escape enter", lambda: self._answer.insert_text("\n"), answering)
        bind("c-d", lambda: self.on_end(), typing_nothing)
        bind("tab", lambda: complete(self._message, self._suggestions), typing)
        bind("c-c", self._interrupt)
        bind("<sigint>", self._interrupt)
        bind("c-z", self._suspend)
        bind("c-l", self._clear)
        return bindings

    def _suspend(self) -> None:
        self._app.suspend_to_background()

    def _clear(self) -> None:
        self._app.renderer.clear()

    def _enter(self, buffer: Buffer) -> None:
        if buffer.document.current_char == "" and buffer.document.char_before_cursor == "\\":
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
            return
        since_answer = asyncio.get_running_loop().time() - self._answered_at
        unchanged = self._draft_then if buffer is self._message else ""
        if since_answer < TYPED_AHEAD_S and buffer.text == unchanged:
            return  # it belongs to the key: it does not send the draft, or an empty reason
        text = buffer.text
        buffer.reset()
        if buffer is self._answer:
            if self._question is not None and not self._question.answer.done():
                self._question.answer.set_result(text)
        elif text.strip():
            if not text[0].isspace():
                self._remember(text)
            self.on_message(text)

    def _remember(self, text: str) -> None:
        self._message.history.append_string(text)
        try:
            append_history(self._history, text)
        except (OSError, ConfigError) as problem:
            self.print(f"this message was not added to the history: {problem}\n")

    def _interrupt(self) -> None:
        has_draft = self._question is None and bool(self._message.text)
        if has_draft:
            self._message.reset()
        self.on_interrupt(has_draft)


def _line_prefix(line: int, wrapped: int) -> StyleAndTextTuples:
    return [("class:prompt", PROMPT if not line and not wrapped else CONTINUATION)]


def _ignore(*_: object) -> None:
    """What happens before the chat has set what to call."""


_STYLE = {
    "status": "fg:ansibrightblack noreverse",
    "prompt": "bold",
    "question": "bold",
    "note": "fg:ansibrightblack",
    "completion-menu": "noinherit",
    "completion-menu.completion": "noinherit",
    "completion-menu.completion.current": "noinherit reverse",
    "completion-menu.meta.completion": "noinherit fg:ansibrightblack",
    "completion-menu.meta.completion.current": "noinherit reverse",
    "scrollbar.background": "noinherit",
    "scrollbar.button": "noinherit reverse",
}
_STYLE_WITHOUT_COLOUR = {
    name: style.replace("fg:ansibrightblack", "").strip() for name, style in _STYLE.items()
}
