"""The tools that a peer gets for a task: read, write, list and run commands in the task's folder.

Commands are written by a model, so they run in bubblewrap: the folder can be written, the rest of
the machine only read, and there is no network. The script of a peer is run once for each task: it
reads a JSON object from its standard input, and the last line that it prints is another one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_CHARS = 8_000
COMMAND_TIMEOUT_S = 30


class FolderTools:
    """The four tools of one task."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder).resolve()
        self.calls = 0
        self.errors = 0

    def _path(self, path: str) -> Path:
        found = (self.folder / path).resolve()
        if not found.is_relative_to(self.folder):
            raise ValueError(f"{path} is outside the folder")
        return found

    def _answer(self, work: Callable[[], str]) -> str:
        self.calls += 1
        try:
            return work()[:MAX_CHARS]
        except (OSError, ValueError, subprocess.SubprocessError) as problem:
            self.errors += 1
            return f"Error: {problem}"

    def read(self, path: str) -> str:
        """Read a text file."""
        return self._answer(lambda: self._path(path).read_text(errors="replace"))

    def write(self, path: str, content: str) -> str:
        """Write a text file."""

        def work() -> str:
            target = self._path(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)
            return f"Wrote {len(content)} characters to {path}."

        return self._answer(work)

    def list_files(self) -> str:
        """List all files below the folder."""

        def work() -> str:
            paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
            names = [str(path.relative_to(self.folder)) for path in paths]
            return "\n".join(name for name in names if not name.startswith(".git/")) or "no files"

        return self._answer(work)

    def shell(self, command: str) -> str:
        """Run a command in the folder."""
        sandbox = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        sandbox += ["--tmpfs", "/run", "--bind", str(self.folder), str(self.folder)]
        sandbox += ["--chdir", str(self.folder), "--unshare-all", "--die-with-parent"]

        def work() -> str:
            done = subprocess.run(
                [*sandbox, "bash", "-c", command],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
            )
            self.errors += done.returncode != 0
            return f"{done.stdout}{done.stderr}\nexit code {done.returncode}"

        return self._answer(work)


def main(run: Callable[[dict[str, Any], FolderTools], tuple[str, int]]) -> None:
    """Run one task: `run` returns the answer and the tokens."""
    asked = json.load(sys.stdin)
    tools = FolderTools(asked["folder"])
    answer, tokens, problem = "", 0, ""
    try:
        answer, tokens = run(asked, tools)
    except Exception as error:  # whatever the framework raises is how its run ended
        problem = f"{type(error).__name__}: {error}"[:300]
    found = {"answer": answer, "tokens": tokens, "problem": problem}
    print("\n" + json.dumps({**found, "calls": tools.calls, "errors": tools.errors}))
