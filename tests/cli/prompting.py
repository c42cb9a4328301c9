"""A prompt in a process of its own, and a Ctrl-C that comes before the reading waits for keys.

The signal is sent to another thread. So Python notes it and the waiting is not interrupted, which
is what happens to one that comes between the prompt and the waiting.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from evoclaw.cli.line_reader import LineReader


def interrupt(trigger: Path) -> None:
    """Wait for the test to write to a pipe; then send the signal."""
    trigger.read_bytes()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


def main(folder: Path) -> None:
    """Prompt once, and print what came of it."""
    threading.Thread(target=interrupt, args=(folder / "trigger",), daemon=True).start()
    try:
        read = LineReader(folder / "history").read("> ")
    except KeyboardInterrupt:
        read = "interrupted"
    sys.stderr.write(f"\nread: {read}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
