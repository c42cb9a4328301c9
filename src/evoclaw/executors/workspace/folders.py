"""`FolderIndex`: the known folders of a workspace, and which of them changed since then."""

from __future__ import annotations

import os
from typing import NamedTuple

from evoclaw.executors.workspace.snapshot import Signature

RACY_NS = 2_000_000_000
"""A folder that changed this shortly before it was read may have changed again unnoticed."""


class FolderListing(NamedTuple):
    """What is of interest in a folder."""

    role: str
    above: str
    """The repository that the folder above belongs to; empty if none."""
    is_repository: bool
    folders: tuple[tuple[str, str], ...]
    """Name and role."""
    entries: tuple[tuple[str, str], ...]
    """Name and kind."""

    def repository(self, folder: str) -> str:
        """The repository that this folder belongs to; empty if none."""
        return folder if self.is_repository else self.above


class FolderIndex:
    """Each known folder with its signature (device, inode, change time) and its listing."""

    def __init__(self) -> None:
        self._signatures: dict[str, Signature] = {}
        self._shared = False
        self.listings: dict[str, FolderListing] = {}
        self.sensitive: set[str] = set()
        """Folders with entries that programs run or obey."""
        self.repositories: set[str] = set()
        self.unreadable: dict[str, tuple[str, str]] = {}
        """Role, and repository above, of folders that could not be read."""
        self._racy: set[str] = set()
        self.size = 0
        """Folders and sensitive entries: what a scan looks at."""

    def __contains__(self, folder: str) -> bool:
        return folder in self.listings or folder in self.unreadable

    def share_signatures(self) -> dict[str, Signature]:
        """The signatures by folder, which stay as they are: the index copies before it changes."""
        self._shared = True
        return self._signatures

    def changed(self) -> list[str]:
        """Folders to read again, those above others first."""
        found = set(self._racy)
        lstat = os.lstat
        # One system call for each folder of the workspace: every statement here counts.
        for folder, (device, inode, changed_ns) in self._signatures.items():
            try:
                seen = lstat(folder)
            except OSError:
                found.add(folder)
                continue
            if seen.st_ctime_ns != changed_ns or seen.st_ino != inode or seen.st_dev != device:
                found.add(folder)
        return sorted(found, key=len)

    def put(self, folder: str, signature: Signature, read_ns: int, listing: FolderListing) -> None:
        """Set what was found in a folder."""
        self._forget(folder)
        self._own_signatures()[folder] = signature
        self.listings[folder] = listing
        self.size += 1 + len(listing.entries)
        if listing.entries:
            self.sensitive.add(folder)
        if listing.is_repository:
            self.repositories.add(folder)
        if read_ns - signature[2] <= RACY_NS:
            self._racy.add(folder)

    def drop(self, folder: str) -> None:
        """Forget a folder and all that is below it."""
        todo = [folder]
        while todo:
            path = todo.pop()
            listing = self._forget(path)
            if listing is not None:
                todo += [f"{path}/{name}" for name, _ in listing.folders]

    def _forget(self, folder: str) -> FolderListing | None:
        self.unreadable.pop(folder, None)
        listing = self.listings.pop(folder, None)
        if listing is None:
            return None
        del self._own_signatures()[folder]
        self.size -= 1 + len(listing.entries)
        for group in (self.sensitive, self.repositories, self._racy):
            group.discard(folder)
        return listing

    def _own_signatures(self) -> dict[str, Signature]:
        if self._shared:
            self._signatures, self._shared = dict(self._signatures), False
        return self._signatures
