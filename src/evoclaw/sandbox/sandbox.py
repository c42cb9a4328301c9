"""`EngineCage`: an engine and its confines, tried out before the first command."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from evoclaw.core.sandboxes import Confines, Engine, Prover, Warm
from evoclaw.executors.process_output import Watch
from evoclaw.executors.process_trees import Tree
from evoclaw.executors.processes import DEFAULT_PATH, LocalProcesses
from evoclaw.executors.protected_paths import guarded
from evoclaw.executors.workspace_watch import Vigil
from evoclaw.sandbox.cgroups import Groups, emptied
from evoclaw.sandbox.workers.cold import EngineTree
from evoclaw.sandbox.workers.pool import IDLE, Nursery, unavailable
from evoclaw.sandbox.workers.warm import CellTree

T = TypeVar("T")
SYSTEM = ("/usr", "/bin", "/sbin", "/nix", "/gnu")
HOME = "/tmp"


class EngineCage:
    """Confines commands by one engine; warm where the engine can keep a worker inside."""

    def __init__(
        self,
        engine: Engine,
        confines: Confines,
        *,
        prover: Prover | None,
        groups: Groups | None = None,
        warm: bool = True,
        idle: float = IDLE,
    ) -> None:
        """Choose how.

        Args:
            engine: What builds the cage.
            confines: What may be reached in it.
            prover: Tries it out before the first command; none: it was tried out already.
            groups: Limits whole commands, where this machine has that.
            warm: Keep a worker inside, if the engine can.
            idle: Seconds without a command after which it is ended.
        """
        self.name = engine.name
        self._engine, self._confines = engine, confines
        self._prover, self._groups, self._idle = prover, groups, idle
        self._warm = engine if warm and isinstance(engine, Warm) else None
        self._starting: asyncio.Task[Nursery] | None = None
        self._retired: list[Nursery] = []
        self._proving: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Raise `ToolFailure` unless the engine is there and held when it was tried out."""
        if self._prover is None:
            return
        tried = self._proving
        if tried is None or _belongs_elsewhere(tried) or _has_failed(tried):
            tried = self._proving = asyncio.create_task(self._prove(self._prover))
        # Others wait for it too: cancelling one of them does not cancel it.
        await asyncio.shield(tried)

    async def _prove(self, prover: Prover) -> None:
        if missing := self._engine.missing():
            raise unavailable(missing)
        exec = LocalProcesses(self._confines.workspace, cage=_Untried(self))
        await prover.prove(self._engine, self._confines, exec)

    def environment(self) -> Mapping[str, str]:
        """What every command in it finds in its environment."""
        shown = (*SYSTEM, self._confines.workspace, *self._confines.writable)
        shown += self._confines.readable
        path = os.environ.get("PATH", DEFAULT_PATH).split(":")
        kept = [one for one in path if any(_below(os.path.realpath(one), top) for top in shown)]
        return {"PATH": ":".join(kept) or DEFAULT_PATH, "HOME": HOME, "TMPDIR": HOME}

    def tree(self) -> Tree:
        """A place for one command."""
        if self._warm is not None:
            return CellTree(self._nursery, self._confines.proxy)
        return EngineTree(self._engine, self._confines, self._groups)

    def vigil(self, watch: Watch) -> Vigil:
        """Watch from outside while a command runs."""
        return Vigil(self._confines, watch)

    async def settle(self, vigil: Vigil) -> None:
        """Take into account what a command left: protect it from the next one."""
        if not vigil.grown:
            return
        paths = await asyncio.to_thread(guarded, self._confines.workspace)
        more = dict.fromkeys((*self._confines.protected, *paths))
        self._confines = msgspec.structs.replace(self._confines, protected=tuple(more))
        self._proving = None
        starting, self._starting = self._starting, None
        if starting is not None and not _belongs_elsewhere(starting):
            # Others may still run in it.
            self._retired.append(await asyncio.shield(starting))

    async def _nursery(self) -> Nursery:
        starting, dead = self._starting, None
        if starting is not None and (_belongs_elsewhere(starting) or _has_failed(starting)):
            starting = None
        if starting is not None and starting.done() and not starting.result().alive:
            starting, dead = None, starting.result()
        if starting is None:
            starting = self._starting = asyncio.create_task(self._start(dead))
        return await asyncio.shield(starting)

    async def _start(self, dead: Nursery | None) -> Nursery:
        if dead is not None:
            await dead.close()
        if self._warm is None:
            raise unavailable(f"{self.name} keeps no worker")
        argv = self._warm.nursery(self._confines)
        nursery = Nursery(argv, self._confines, self._groups, idle=self._idle)
        await nursery.start()
        return nursery

    @property
    def busy(self) -> bool:
        """Whether something runs in it, or may soon."""
        starting = self._starting
        if starting is None:
            return False
        return not starting.done() or (not _has_failed(starting) and starting.result().busy)

    async def close(self) -> None:
        """End the worker, and with it everything in the cage."""
        starting, self._starting = self._starting, None
        retired, self._retired = self._retired, []
        for nursery in retired:
            await nursery.close()
        await emptied(self._groups)
        if starting is None or _belongs_elsewhere(starting):
            return
        await asyncio.wait([starting])
        if not _has_failed(starting):
            await starting.result().close()


class _Untried:
    """The same cage before it was tried out: for the one who tries it."""

    def __init__(self, cage: EngineCage) -> None:
        self.name = cage.name
        self._cage = cage

    async def ready(self) -> None:
        """Let the canary in."""

    def environment(self) -> Mapping[str, str]:
        return self._cage.environment()

    def tree(self) -> Tree:
        return self._cage.tree()

    def vigil(self, watch: Watch) -> Vigil:
        return self._cage.vigil(watch)

    async def settle(self, vigil: Vigil) -> None:
        await self._cage.settle(vigil)


def _belongs_elsewhere(task: asyncio.Task[T]) -> bool:
    """Whether it was begun in an event loop that is gone."""
    return task.get_loop() is not asyncio.get_running_loop()


def _has_failed(task: asyncio.Task[T]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
