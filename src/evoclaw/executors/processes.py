"""`LocalProcesses`: the processes of this machine, each call a tree that is dead when it ends."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import Completed
from evoclaw.executors.command_limits import limits_met
from evoclaw.executors.finishing import finish
from evoclaw.executors.process_output import STDERR, STDOUT, Watch
from evoclaw.executors.process_trees import Job, Namespace, Supervised, Tree, Unshare
from evoclaw.executors.roots import Roots
from evoclaw.executors.workspace_watch import Vigil

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
NAMESPACE, NONE = "pid-namespace", "none"
SHOWN = 2_000
"""Bytes of a stopped command's output that are shown in the refusal."""


class Cage(Protocol):
    """What confines the processes of this machine."""

    name: str
    """What results say they were isolated by."""

    async def ready(self) -> None:
        """Raise `ToolFailure` (`sandbox_unavailable`) unless it was tried out and holds."""
        ...

    def environment(self) -> Mapping[str, str]:
        """What every command in it finds in its environment."""
        ...

    def tree(self) -> Tree:
        """A place for one command."""
        ...

    def vigil(self, watch: Watch) -> Vigil:
        """Watch from outside while a command runs."""
        ...

    async def settle(self, vigil: Vigil) -> None:
        """Take into account what a command left."""
        ...


class LocalProcesses:
    """Processes of this machine.

    They start in a clean environment (nothing of ours but PATH, HOME and LANG), without a
    terminal and with nothing to read. When a call ends, however it ends, everything it started
    is dead. This is tidiness, not a cage: what a command may reach is the `cage`'s to decide, and
    without one it may reach what we may.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        roots: Iterable[str | Path] = (),
        env: Mapping[str, str] | None = None,
        isolation: Literal["auto", "pid-namespace", "none"] = "auto",
        max_bytes: int = 128 << 20,
        grace: float = 0.3,
        cage: Cage | None = None,
    ) -> None:
        """Choose where and how.

        Args:
            root: The workspace; relative folders start here.
            roots: Further folders a command may start in, by absolute path.
            env: Further environment variables for every command.
            isolation: `pid-namespace` refuses to run without one; `auto` tries, and says what
                it got; `none` does not try, for programs that bring their own.
            max_bytes: A command that writes more than this is stopped.
            grace: Seconds between asking a command to end and killing it.
            cage: What confines them; `isolation` then means nothing.
        """
        self._roots = Roots(root, writable=roots, mounts=True)
        self._env = dict(env or {})
        self._wanted = isolation
        self._max_bytes, self._grace = max_bytes, grace
        self._how: Unshare | None = None
        self._probed = isolation == NONE
        self._cage = cage

    async def isolation(self) -> str:
        """What commands here really run in: a cage's name, `pid-namespace` or `none`."""
        if self._cage is not None:
            await self._cage.ready()
            return self._cage.name
        if not self._probed:
            probing = asyncio.create_task(_probe(self._roots.workspace.path))
            try:
                await asyncio.wait([probing])
            except asyncio.CancelledError:
                # As below: however often we are cancelled, it ends what it started.
                await finish(probing)
                raise
            self._how = probing.result()
            self._probed = True
        if self._how is None and self._wanted == NAMESPACE:
            raise ToolFailure(
                ErrorKind.SANDBOX_UNAVAILABLE,
                "This machine does not allow a pid namespace, and commands here need one. "
                "Explain this to the user.",
            )
        return NONE if self._how is None else NAMESPACE

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        on_output: Callable[[str], None] | None = None,
        max_output: int = 1 << 20,
    ) -> Completed:
        """Run a program to its end, its leftovers included."""
        # Not in a thread: a few looks at folders that starting a program looks at anyway.
        job = self._job(tuple(argv), cwd, env or {}, stdin)
        isolation = await self.isolation()
        tree = self._tree()
        watch = Watch(max_output, self._max_bytes, on_output)
        vigil = None if self._cage is None else self._cage.vigil(watch)
        # A task of its own: cancelling the caller must not cut the clean-up short.
        living = asyncio.create_task(self._live(tree, job, watch))
        try:
            await asyncio.wait([living])
        except asyncio.CancelledError:
            watch.wake.set()
            await finish(living)
            raise
        finally:
            met = [] if vigil is None else vigil.stop()
        try:
            code = living.result()
        except OSError as problem:
            raise _refused(problem, job.argv[0]) from None
        if vigil is not None and self._cage is not None:
            await self._cage.settle(vigil)
            _check_made(vigil.made, isolation)
        if watch.overflowed:
            raise self._too_much(watch, isolation)
        said = watch.kept[STDERR].content()
        if met := limits_met(code, said, met + tree.met(), caged=self._cage is not None):
            raise _limited(met, code, watch, isolation)
        out, err = watch.kept[STDOUT], watch.kept[STDERR]
        return Completed(code, out.content(), err.content(), out.total, err.total, isolation)

    def _tree(self) -> Tree:
        if self._cage is not None:
            return self._cage.tree()
        return Supervised() if self._how is None else Namespace(self._how)

    async def _live(self, tree: Tree, job: Job, watch: Watch) -> int:
        try:
            await tree.start(job, watch)
            await watch.wake.wait()
            if not watch.exited.is_set() and not watch.overflowed:
                tree.terminate()
                await watch.settled(self._grace)
        finally:
            code = await tree.end()
        return code

    def _job(
        self, argv: tuple[str, ...], cwd: str, env: Mapping[str, str], stdin: bytes | None
    ) -> Job:
        folder = self._roots.real_folder(cwd)
        whole = _clean_environment()
        if self._cage is not None:
            whole |= self._cage.environment()
        whole |= self._env | dict(env)
        for text in (*argv, *whole.keys(), *whole.values()):
            _check_text(text)
        if not argv or not argv[0]:
            raise ToolFailure(ErrorKind.INVALID_PARAMS, "No program was named.")
        name = argv[0]
        program = str(Path(folder, name)) if "/" in name else name
        found = shutil.which(program, path=whole.get("PATH", DEFAULT_PATH))
        if found is None:
            raise ToolFailure(
                ErrorKind.NOT_FOUND,
                f"There is no program '{name}' on this machine. Use another one.",
            )
        return Job((str(Path(folder, found)), *argv[1:]), folder, whole, stdin)

    def _too_much(self, watch: Watch, isolation: str) -> ToolFailure:
        out, err = watch.kept[STDOUT], watch.kept[STDERR]
        head = (out.content() or err.content())[:SHOWN].decode(errors="replace")
        return ToolFailure(
            ErrorKind.TOO_LARGE,
            f"The command wrote more than {self._max_bytes:,} bytes and was stopped. Send its "
            f"output to a file, or cut it with head, tail or grep. It began:\n{head}",
            stdout_bytes=out.total,
            stderr_bytes=err.total,
            isolation=isolation,
        )


def _check_made(made: list[str], isolation: str) -> None:
    if made:
        raise ToolFailure(
            ErrorKind.PERMISSION_DENIED,
            f"The command ran, but made what is protected: {', '.join(made)}. It was set aside. "
            "Do not make it again; explain to the user what should be in it.",
            isolation=isolation,
        )


def _limited(met: list[str], code: int, watch: Watch, isolation: str) -> ToolFailure:
    out, err = watch.kept[STDOUT], watch.kept[STDERR]
    tail = (out.content()[-SHOWN:] + err.content()[-SHOWN:]).decode(errors="replace").strip()
    what = " and ".join(met)
    return ToolFailure(
        ErrorKind.RESOURCE,
        f"The command met the limit on {what} and was stopped or failed. Do it in smaller pieces, "
        f"or tell the user that it needs more. It ended with {code} and wrote last:\n{tail}",
        limits=list(met),
        exit_code=code,
        isolation=isolation,
    )


def _clean_environment() -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", DEFAULT_PATH),
        "HOME": os.environ.get("HOME", "/"),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "TERM": "dumb",
    }


def _check_text(text: str) -> None:
    try:
        if b"\0" not in os.fsencode(text):
            return
    except UnicodeEncodeError:
        pass
    raise ToolFailure(
        ErrorKind.INVALID_PARAMS,
        "An argument contains a NUL character or is not valid text. Leave it out.",
    )


def _refused(problem: OSError, program: str) -> ToolFailure:
    if problem.errno == errno.E2BIG:
        return ToolFailure(
            ErrorKind.TOO_LARGE,
            "The command is too long for this machine. Write it to a file and run that.",
        )
    reason = problem.strerror or str(problem)
    return ToolFailure(ErrorKind.EXECUTION_FAILED, f"'{program}' could not be started: {reason}.")


async def _probe(folder: str) -> Unshare | None:
    """Find a way to make pid namespaces by making one."""
    names = ("unshare", "nsenter", "cat", "true")
    unshare, nsenter, cat, true = (
        shutil.which(name, path=os.environ.get("PATH", "") + ":" + DEFAULT_PATH) for name in names
    )
    if unshare is None or nsenter is None or cat is None or true is None:
        return None
    for user in (False, True) if os.geteuid() == 0 else (True,):
        how = Unshare(unshare, nsenter, cat, user)
        tree, watch = Namespace(how), Watch(1024, 1024)
        try:
            await tree.start(Job((true,), folder, {}), watch)
            worked = await watch.settled(5)
        except (OSError, TimeoutError):
            worked = False
        finally:
            code = await tree.end()
        if worked and code == 0:
            return how
    return None
