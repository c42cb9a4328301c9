"""Reads messages at a terminal: line editing, a history, and pasted text as one message."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, ModuleType

import msgspec

from evoclaw.cli.data_folder import make_private

MAX_HISTORY_LINES = 1_000
"""Messages in the history file."""
PASTE_WINDOW_S = 0.02
"""Seconds within which another line belongs to the same paste: faster than typing."""
WAKE_INTERVAL_S = 0.05
"""Seconds that a signal has to end the reading of a line before another one is sent."""
WAKE_ATTEMPTS = 20
CONTINUATION_PROMPT = "… "
"""The prompt after a line that ends in a backslash."""


class LineReader:
    """Reads messages at a terminal; the arrow keys recall earlier ones."""

    def __init__(self, history: Path) -> None:
        self._history = history
        self._editor = _editor()
        if self._editor is not None:
            for text in read_history(history):
                self._editor.add_history(text)

    def read(self, prompt: str) -> str | None:
        """Read a message; a backslash at the end continues it. None at the end of input."""
        with _signals_delivered():
            try:
                text = input(prompt)
                while text.endswith("\\") or _has_more_input():
                    more = CONTINUATION_PROMPT if text.endswith("\\") else ""
                    text = text.removesuffix("\\") + "\n" + input(more)
            except EOFError:
                return None
        return text

    def add_history(self, text: str) -> None:
        """Add a message to the history, unless it starts with a space."""
        if not text.strip() or text[0].isspace():
            return
        if self._editor is not None:
            self._editor.add_history(text)
        append_history(self._history, text)


@contextmanager
def _signals_delivered() -> Generator[None]:
    """While the block reads a line, deliver a Ctrl-C however early it comes.

    Python's `input` handles a signal when it interrupts the wait for a key. One that comes between
    the prompt and that wait would be handled at the next signal only. So a thread sees every signal
    and sends another one if the block still reads a moment later. It does not poll with a timer: a
    signal in the middle of a key press can confuse GNU readline.
    """
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(reading, True)
    ended = threading.Event()
    reader = threading.get_ident()

    def wake() -> None:
        while number := os.read(reading, 1):
            if number[0] == signal.SIGALRM:
                continue
            for _ in range(WAKE_ATTEMPTS):
                if ended.wait(WAKE_INTERVAL_S):
                    break
                signal.pthread_kill(reader, signal.SIGALRM)

    thread = threading.Thread(target=wake, name="signals at the prompt", daemon=True)
    alarm = signal.signal(signal.SIGALRM, _do_nothing)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before)
        os.close(writing)
        thread.join()
        os.close(reading)
        signal.signal(signal.SIGALRM, alarm)


def _do_nothing(_signal: int, _frame: FrameType | None) -> None:
    """A signal with a handler interrupts the wait for a key."""


def read_history(path: Path) -> list[str]:
    """The messages of the history file; skips lines that cannot be read."""
    messages: list[str] = []
    with suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines()[-MAX_HISTORY_LINES:]:
            with suppress(msgspec.DecodeError):
                messages.append(msgspec.json.decode(line, type=str))
    return messages


def append_history(path: Path, text: str) -> None:
    """Append one message to a file that only its owner may read; drops the oldest at times."""
    make_private(path.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "ab") as file:
        file.write(msgspec.json.encode(text) + b"\n")
    lines = path.read_bytes().splitlines(keepends=True)
    if len(lines) > 2 * MAX_HISTORY_LINES:
        new = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(new, flags | os.O_EXCL, 0o600), "wb") as file:
            file.writelines(lines[-MAX_HISTORY_LINES:])
        new.replace(path)


def _has_more_input() -> bool:
    return bool(select.select([sys.stdin], [], [], PASTE_WINDOW_S)[0])


def _editor() -> ModuleType | None:
    """The module `readline`, if this Python has it."""
    try:
        import readline
    except ImportError:
        return None
    readline.set_auto_history(False)
    # With bracketed paste, several pasted lines arrive as one text.
    readline.parse_and_bind("set enable-bracketed-paste on")
    return readline
