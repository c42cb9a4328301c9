"""A line that says what is waited for, and for how long, if it takes longer than a moment.

It is drawn on standard error, at a terminal only, by a thread of its own, so also while the process
is busy. The code that prints something else stops it first.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

DELAY_S = 0.3
"""Seconds after which the line is drawn: what is faster needs none."""
REDRAW_INTERVAL_S = 0.1
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ERASE_LINE = "\r\x1b[2K"


class ProgressLine:
    """The line; nothing is drawn if standard error is not a terminal, or belongs to a chat."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped: threading.Event | None = None
        """Ends the thread that draws; None if none does."""
        self._is_drawn = False

    def start(self, text: str | Callable[[], str]) -> None:
        """Say what is waited for from now on, in place of what was.

        Args:
            text: What is waited for, with the seconds behind it; or a function for a line that
                changes, which is called for each drawing.
        """
        self.stop()
        stream = sys.stderr
        if stream is not sys.__stderr__ or not stream.isatty():
            return
        stopped = self._stopped = threading.Event()
        drawing = threading.Thread(target=self._draw, args=(text, stopped), daemon=True)
        drawing.start()

    def stop(self) -> None:
        """Erase the line."""
        if self._stopped is None:
            return
        with self._lock:  # not in the middle of a drawing
            self._stopped.set()
            if self._is_drawn:
                self._write("")
        self._stopped = None

    def _draw(self, text: str | Callable[[], str], stopped: threading.Event) -> None:
        since = time.monotonic()
        wait = DELAY_S
        frame = 0
        while not stopped.wait(wait):
            with self._lock:
                if stopped.is_set():
                    return
                mark = _FRAMES[frame % len(_FRAMES)]
                seconds = f"{time.monotonic() - since:.0f} s"
                self._write(f"{mark} {text() if callable(text) else f'{text} · {seconds}'}")
            wait, frame = REDRAW_INTERVAL_S, frame + 1

    def _write(self, text: str) -> None:
        stream = sys.__stderr__
        if stream is None:
            return
        try:
            columns = os.get_terminal_size(stream.fileno()).columns or 80
        except OSError:
            columns = 80
        self._is_drawn = bool(text)
        stream.write(_ERASE_LINE + text[: columns - 1])
        stream.flush()


@contextmanager
def waiting(text: str | Callable[[], str]) -> Generator[None]:
    """Say what is waited for while the block runs; it must print nothing."""
    line = ProgressLine()
    line.start(text)
    try:
        yield
    finally:
        line.stop()
