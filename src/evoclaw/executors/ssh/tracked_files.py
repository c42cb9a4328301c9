"""`TrackedSshFiles`: files over SFTP that keep their content here before a call changes them."""

from __future__ import annotations

from functools import partial

from evoclaw.executors.ssh.files import SshFiles
from evoclaw.executors.tracked_files import content_of, track_change


class TrackedSshFiles(SshFiles):
    """Files of another machine; what a call overwrites or deletes is read and stored before."""

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Create or replace a file, after its content was kept."""
        change = partial(super().write, path, data, mode=mode)
        await track_change(self, path, content_of(data), change)

    async def remove(self, path: str) -> None:
        """Delete a file, after its content was kept."""
        await track_change(self, path, None, partial(super().remove, path))
