"""What is watched from outside while a command runs, because no cage can forbid it."""

from __future__ import annotations

import asyncio
import os

from evoclaw.core.sandboxes import Confines
from evoclaw.executors.command_limits import DISK, FILES
from evoclaw.executors.process_output import Watch
from evoclaw.executors.protected_paths import absent, set_aside

EVERY = 0.25
"""Seconds between two looks at the disk."""


class Vigil:
    """Watches the disk fill up, and protected files appear that were not there to be protected.

    No kernel counts the files of a process: it looks at the file system of the workspace, where
    what others write meanwhile is counted too, so those limits are generous. And a file that is
    not there cannot be made read-only: one that appears is set aside when the command ends.
    """

    def __init__(self, confines: Confines, watch: Watch) -> None:
        self._confines, self._watch = confines, watch
        self._bytes, self._files = _used(confines.workspace)
        self._absent = absent(confines.workspace)
        self._met: list[str] = []
        self.made: list[str] = []
        """Protected files that the command made, and where they are now."""
        self.grown = False
        """Whether there is something new to protect from the next command."""
        self._timer = asyncio.get_running_loop().call_later(EVERY, self._look)

    def _look(self) -> None:
        used, files = _used(self._confines.workspace)
        grown, made = used - self._bytes, files - self._files
        if grown > self._confines.disk or made > self._confines.files:
            self._met = [DISK if grown > self._confines.disk else FILES]
            self._watch.wake.set()
            return
        self._timer = asyncio.get_running_loop().call_later(EVERY, self._look)

    def stop(self) -> list[str]:
        """Watch no more, and set aside what was made; the limits that were met."""
        self._timer.cancel()
        for name in self._absent:
            if not os.path.lexists(f"{self._confines.workspace}/{name}"):
                continue
            if aside := set_aside(self._confines.workspace, name):
                self.made.append(f"{name} (now {aside})")
            else:
                self.grown = True
        return self._met


def _used(path: str) -> tuple[int, int]:
    """Bytes and files taken on a file system."""
    seen = os.statvfs(path)
    return (seen.f_blocks - seen.f_bfree) * seen.f_frsize, seen.f_files - seen.f_ffree
