"""A command in a cage that is made for it, by an engine that keeps none warm."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping

from evoclaw.core.sandboxes import Confines, Engine, Outliving
from evoclaw.executors.process_output import Watch
from evoclaw.executors.process_trees import PATIENCE, Job, Supervised
from evoclaw.sandbox.cgroups import Group, Groups
from evoclaw.sandbox.workers.warm import with_way_out

OBEYED = re.compile(
    r"(LD_|GLIBC_|GCONV_|MALLOC_|PYTHON|BASH|PERL|XDG_|CONTAINER|DOCKER|TMP|IFS$|ENV$|PS4$"
    r"|SHELLOPTS$|LOCPATH$|NLSPATH$|HOME$|PATH$)"
)
"""Names that programs outside the cage obey: they are said to the command alone, inside."""
OURS = ("PATH", "HOME", "LANG", "XDG_RUNTIME_DIR")
ENTER = 'while [ "$1" != -- ]; do echo $$ >"$1" || exit 125; shift; done; shift; exec "$@"'


class EngineTree:
    """A command below an engine below a supervisor."""

    def __init__(self, engine: Engine, confines: Confines, groups: Groups | None) -> None:
        self._engine, self._confines, self._groups = engine, confines, groups
        self._group: Group | None = None
        self._tree = Supervised()
        self._command: tuple[str, ...] = ()
        self._watch: Watch | None = None
        self._met: list[str] = []

    async def start(self, job: Job, watch: Watch) -> None:
        """Start the engine, which starts the command."""
        self._watch, job = watch, with_way_out(job, self._confines.proxy)
        outside, inside = divided(job.env)
        names = (f"{name}={value}" for name, value in inside.items())
        argv = ("/usr/bin/env", "-u", "XDG_RUNTIME_DIR", *names, *_named(job.argv))
        line = self._command = self._engine.command(self._confines, argv, job.cwd)
        if self._groups is not None:
            self._group = self._groups.make(self._confines)
            line = ("/bin/sh", "-c", ENTER, "sh", *self._group.files(), "--", *line)
        await self._tree.start(Job(line, "/", outside, job.stdin), watch)

    def terminate(self) -> None:
        """Have every descendant signalled."""
        self._tree.terminate()

    async def end(self) -> int:
        """Have everything killed, also what the engine keeps apart from us."""
        by_itself = self._watch is not None and self._watch.exited.is_set()
        if self._command and isinstance(self._engine, Outliving) and not by_itself:
            await _run(self._engine.ending(self._command))
        code = await self._tree.end()
        if self._group is not None and self._groups is not None:
            self._met = self._group.met() if code else []
            self._groups.remove(self._group)
        return code

    def met(self) -> list[str]:
        """The limits that the command met, as far as the kernel tells."""
        return self._met


def _named(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command so that `env` does not take its name for a variable."""
    return ("/bin/sh", "-c", 'exec "$0" "$@"', *argv) if "=" in argv[0] else argv


def divided(env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """An environment for the programs outside, and what only the command inside may see."""
    inside = {name: value for name, value in env.items() if OBEYED.match(name)}
    outside = {name: value for name, value in env.items() if name not in inside}
    return outside | {name: os.environ[name] for name in OURS if name in os.environ}, inside


async def _run(argv: tuple[str, ...]) -> None:
    ending = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(2 * PATIENCE):
            await ending.wait()
    except TimeoutError:
        ending.kill()
        await ending.wait()
