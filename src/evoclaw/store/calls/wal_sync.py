"""`WalSync`: syncs the write-ahead log of a SQLite file apart from the commits that wrote it.

A commit that is not synced is in the page cache: it survives the death of the process, but not a
power cut. So a caller waits for the disk only where it must, and one sync serves all who wait. The
log is also copied into the file here, because that waits for the disk, too.
"""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from evoclaw.store.databases.database import StoreError
from evoclaw.store.databases.sqlite_file import companion_path, connect

FAST_SYNC_S = 0.0005
"""Seconds of a sync that takes no longer than to wake a thread for it and to be woken again."""
MAX_UNSYNCED_S = 0.25
"""Seconds after which a commit that no caller waits for is synced."""
CHECKPOINT_WRITES = 300
"""Writes after which the log is copied into the file."""

_sync_file = getattr(os, "fdatasync", os.fsync)


class WalSync:
    """The sync of one open file; its connection must not copy the log itself."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._path, self._wal = path, companion_path(path, "-wal")
        self._file = os.open(self._wal, os.O_RDWR)
        self._checkpoints: sqlite3.Connection | None = None
        self._waiting: list[tuple[asyncio.Future[Any], Any]] = []
        """Futures that wait for the next sync, and their results."""
        self._syncing: list[tuple[asyncio.Future[Any], Any]] = []
        """Those that wait for the sync in progress."""
        self._is_running = self._is_unsynced = False
        self._timer: asyncio.TimerHandle | None = None
        self._problem: OSError | None = None
        self._writes = 0
        self._last_s = math.inf
        """How long the last sync took."""
        self.count = 0
        """How often the disk was waited for."""
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._ended = asyncio.Event()
        # A daemon: a journal that was not closed must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=f"sync {path.name}", daemon=True)
        self._thread.start()

    async def wait(self) -> None:
        """Wait until everything that was committed so far is on the disk."""
        future = self._loop.create_future()
        self.committed(0, [(future, None)])
        await future

    def committed(
        self,
        writes: int,
        waiting: Sequence[tuple[asyncio.Future[Any], Any]],
        *,
        alone: bool = False,
    ) -> None:
        """Note a commit: it is synced now if a caller waits for that, else a moment later.

        Args:
            writes: How many writes it has.
            waiting: Futures, and the results that they get when it is on the disk.
            alone: Whether nothing else is going on: then a fast disk is waited for right here.
        """
        self._writes += writes
        self._waiting += waiting
        self._is_unsynced = True
        if self._waiting and not self._is_running:
            self._start(here=alone and self._is_fast)
        elif self._timer is None:
            self._timer = self._loop.call_later(MAX_UNSYNCED_S, self._due)

    async def close(self) -> None:
        """Sync everything, and release the file."""
        try:
            await self.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._requests.put(False)
            await self._ended.wait()
            self._thread.join()

    def _due(self) -> None:
        self._timer = None
        if self._is_unsynced and not self._is_running:
            self._start()
        elif self._is_unsynced:
            self.committed(0, ())

    @property
    def _is_fast(self) -> bool:
        return self._last_s <= FAST_SYNC_S and self._writes < CHECKPOINT_WRITES

    def _start(self, *, here: bool = False) -> None:
        self._is_unsynced = False
        self._syncing, self._waiting = self._waiting, []
        self._is_running = True
        self.count += 1
        if here:
            self._synced(self._sync())
        else:
            self._requests.put(True)

    def _synced(self, problem: OSError | None) -> None:
        self._is_running = False
        synced, self._syncing = self._syncing, []
        if self._waiting:
            self._start()
        for future, result in synced:
            if problem is None:
                set_result(future, result)
            elif not future.done():
                future.set_exception(
                    StoreError(
                        f"{self._path} cannot be written to the disk: {problem}. Restart this "
                        "process to continue from what is stored"
                    )
                )

    def _run(self) -> None:
        """The main function of the thread."""
        while self._requests.get() and self._call_in_loop(self._synced, self._sync()):
            if self._writes >= CHECKPOINT_WRITES and self._problem is None:
                # If it fails, as on a full disk, it is tried again after the next sync.
                with suppress(sqlite3.Error):
                    self._checkpoint()
        self._release()
        self._call_in_loop(self._ended.set)

    def _call_in_loop(self, function: Callable[..., object], *arguments: object) -> bool:
        # In a closed loop no caller waits any more.
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True

    def _sync(self) -> OSError | None:
        if self._problem is None:
            started = time.perf_counter()
            try:
                _sync_file(self._file)
                self._last_s = time.perf_counter() - started
            except OSError as problem:
                # The kernel forgets what was not written: a repetition would succeed.
                self._problem = problem
        return self._problem

    def _checkpoint(self) -> None:
        self._writes = 0
        if self._checkpoints is None:
            self._checkpoints = connect(self._path, "rw")
        self._checkpoints.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _release(self) -> None:
        os.close(self._file)
        if self._checkpoints is not None:
            self._checkpoints.close()


def set_result(future: asyncio.Future[Any], result: object) -> None:
    """Give a result to a caller that still waits."""
    if not future.done():
        future.set_result(result)
