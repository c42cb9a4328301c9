"""`EngineTree`: a command in a sandbox that is started for it alone."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping

from evoclaw.core.sandboxes import DetachedEngine, SandboxEngine, SandboxPolicy
from evoclaw.executors.process_output import ProcessWatch
from evoclaw.executors.process_trees import END_TIMEOUT_S, CommandSpec, SupervisedTree
from evoclaw.sandbox.cgroups import Cgroup, CgroupFactory
from evoclaw.sandbox.workers.warm import with_egress

OBEYED_VARIABLES = re.compile(
    r"(LD_|GLIBC_|GCONV_|MALLOC_|PYTHON|BASH|PERL|XDG_|CONTAINER|DOCKER|TMP|IFS$|ENV$|PS4$"
    r"|SHELLOPTS$|LOCPATH$|NLSPATH$|HOME$|PATH$)"
)
"""Variables that programs outside the sandbox obey: only the command inside gets them."""
PASSED_ON_VARIABLES = ("PATH", "HOME", "LANG", "XDG_RUNTIME_DIR")
ENTER_CGROUP_SCRIPT = (
    'while [ "$1" != -- ]; do echo $$ >"$1" || exit 125; shift; done; shift; exec "$@"'
)


class EngineTree:
    """The process tree of a command below an engine below a supervisor."""

    def __init__(
        self, engine: SandboxEngine, policy: SandboxPolicy, groups: CgroupFactory | None
    ) -> None:
        self._engine, self._policy, self._groups = engine, policy, groups
        self._group: Cgroup | None = None
        self._tree = SupervisedTree()
        self._command: tuple[str, ...] = ()
        self._watch: ProcessWatch | None = None
        self._met: list[str] = []

    async def start(self, job: CommandSpec, watch: ProcessWatch) -> None:
        """Start the engine, which starts the command."""
        self._watch, job = watch, with_egress(job, self._policy.proxy)
        outside, inside = divide_environment(job.env)
        names = (f"{name}={value}" for name, value in inside.items())
        argv = ("/usr/bin/env", "-u", "XDG_RUNTIME_DIR", *names, *_named(job.argv))
        line = self._command = self._engine.command(self._policy, argv, job.cwd)
        if self._groups is not None:
            self._group = self._groups.make(self._policy)
            line = ("/bin/sh", "-c", ENTER_CGROUP_SCRIPT, "sh", *self._group.files(), "--", *line)
        await self._tree.start(CommandSpec(line, "/", outside, job.stdin), watch)

    def terminate(self) -> None:
        """Signal every descendant."""
        self._tree.terminate()

    async def end(self) -> int:
        """Kill everything, also what the engine started outside our process tree."""
        by_itself = self._watch is not None and self._watch.exited.is_set()
        if self._command and isinstance(self._engine, DetachedEngine) and not by_itself:
            await _run(self._engine.end_command(self._command))
        code = await self._tree.end()
        if self._group is not None and self._groups is not None:
            self._met = self._group.met() if code else []
            self._groups.remove(self._group)
        return code

    def met(self) -> list[str]:
        """The limits that the command reached, as far as the kernel reports them."""
        return self._met


def _named(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command, so that `env` does not take its name for a variable."""
    return ("/bin/sh", "-c", 'exec "$0" "$@"', *argv) if "=" in argv[0] else argv


def divide_environment(env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The environment for the programs outside, and what only the command inside may see."""
    inside = {name: value for name, value in env.items() if OBEYED_VARIABLES.match(name)}
    outside = {name: value for name, value in env.items() if name not in inside}
    return outside | {
        name: os.environ[name] for name in PASSED_ON_VARIABLES if name in os.environ
    }, inside


async def _run(argv: tuple[str, ...]) -> None:
    ending = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(2 * END_TIMEOUT_S):
            await ending.wait()
    except TimeoutError:
        ending.kill()
        await ending.wait()
