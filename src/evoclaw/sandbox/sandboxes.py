"""`LocalCages`: this machine's processes inside its sandbox engines, each cage made when needed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from evoclaw.core.ops import ExecOps
from evoclaw.core.sandboxes import Confines, Engine, Prover
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.cgroups import find_groups
from evoclaw.sandbox.sandbox import EngineCage
from evoclaw.sandbox.workers.pool import unavailable

NONE = "none"
HIDES = "bubblewrap"
"""The engine that can hide a part of the workspace."""
MOST = 8
"""Cages kept: those used longest ago are closed first, if nothing runs in them."""


class LocalCages:
    """Cages by engine, tenant and trust; nothing warm is shared between two of them."""

    def __init__(
        self,
        confines: Confines,
        engines: Mapping[str, Engine],
        prover: Prover,
        *,
        default: str = "bubblewrap",
        tools: Mapping[str, str] | None = None,
        warm: bool = True,
        max_bytes: int = 128 << 20,
    ) -> None:
        """Take everything there is; nothing is started before the first command.

        Args:
            confines: The bounds of every cage.
            engines: The engines of this machine by name.
            prover: Tries each one out before it is used.
            default: The engine of tools that name none.
            tools: Other engines, by the name of the tool.
            warm: Keep workers inside, where an engine can.
            max_bytes: A command that writes more than this is stopped.
        """
        self._confines, self._engines, self._prover = confines, engines, prover
        self.default, self._tools = default, dict(tools or {})
        """The engine of tools that name none."""
        self._warm, self._max_bytes = warm, max_bytes
        self._groups = find_groups()
        self._cages: dict[tuple[str, str, bool], EngineCage] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def exec_in(self, engine: str = "", *, tenant: str = "local", trusted: bool = True) -> ExecOps:
        """Processes inside an engine, the default one if none is named.

        An engine that is missing or does not hold refuses every command; it is never replaced.

        Raises:
            ToolFailure: There is no engine of that name.
        """
        name = engine or self.default
        if name == NONE:
            return LocalProcesses(self._confines.workspace, max_bytes=self._max_bytes)
        if name not in self._engines:
            known = ", ".join(sorted(self._engines))
            raise unavailable(f"there is no engine '{name}' here, only {known}")
        if self._confines.hidden and name != HIDES:
            places = ", ".join(self._confines.hidden)
            raise unavailable(
                f"'{name}' cannot hide {places} inside the workspace, only {HIDES} can; "
                "work in another folder"
            )
        cage = self._cage(name, tenant, trusted)
        return LocalProcesses(
            self._confines.workspace,
            roots=self._confines.writable,
            max_bytes=self._max_bytes,
            cage=cage,
        )

    def exec_for(self, tool: str, *, tenant: str = "local", trusted: bool = True) -> ExecOps:
        """Processes for one tool, inside the engine that the settings give it."""
        return self.exec_in(self._tools.get(tool, ""), tenant=tenant, trusted=trusted)

    def _cage(self, name: str, tenant: str, trusted: bool) -> EngineCage:
        key = (name, tenant, trusted)
        found = self._cages.pop(key, None)
        if found is None:
            confines = msgspec.structs.replace(self._confines, tenant=tenant, trusted=trusted)
            found = EngineCage(
                self._engines[name],
                confines,
                prover=self._prover,
                groups=self._groups,
                warm=self._warm,
            )
        # Last is newest.
        self._cages[key] = found
        idle = [one for one, cage in self._cages.items() if not cage.busy and one != key]
        for one in idle[: max(0, len(self._cages) - MOST)]:
            self._rest(self._cages.pop(one))
        return found

    def _rest(self, cage: EngineCage) -> None:
        closing = asyncio.get_running_loop().create_task(cage.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End everything in every cage."""
        cages, self._cages = list(self._cages.values()), {}
        for cage in cages:
            await cage.close()
        if self._closing:
            await asyncio.wait(self._closing)
