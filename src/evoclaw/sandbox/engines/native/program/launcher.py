"""A standalone program: builds the native sandbox around itself, then execs the command.

Started as `KEY=VALUE… -- PROGRAM ARGUMENT…`. It uses only the standard library, and its arguments
decide everything. If any step fails, it prints the reason, exits with `EXIT_REFUSED`, and the
command never starts.
"""

# Loading pathlib would make every start slower.
# ruff: noqa: PTH102
import os
import sys

from evoclaw.sandbox.engines.native.program import (
    credentials,
    filesystem,
    restrictions,
    supervise,
)
from evoclaw.sandbox.engines.native.program.kernel import (
    CLOSE_RANGE,
    DUMPABLE,
    EXIT_REFUSED,
    REFUSAL_PREFIX,
    Kernel,
    SandboxRefused,
)

NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""Mounts, control groups, host name, IPC, processes, network."""
LAUNCH_ERRORS = (SandboxRefused, OSError, ValueError, KeyError)


class LauncherArguments:
    """The arguments that the engine passed."""

    def __init__(self, arguments: list[str]) -> None:
        cut = arguments.index("--")
        self.argv = arguments[cut + 1 :]
        self._values: dict[str, list[str]] = {}
        for word in arguments[:cut]:
            key, _, value = word.partition("=")
            self._values.setdefault(key, []).append(value)

    def all(self, key: str) -> list[str]:
        """Every value of a key."""
        return self._values.get(key, [])

    def one(self, key: str) -> str:
        """The only value of a key."""
        return self._values[key][0]

    def number(self, key: str) -> int:
        """The only value of a key, as a number."""
        return int(self._values[key][0])


def main() -> None:
    """Build the sandbox and run the command in it; exit as the command did."""
    try:
        arguments, kernel = LauncherArguments(sys.argv[1:]), Kernel()
        kernel.call("close descriptors", CLOSE_RANGE, 3, 0x7FFFFFFF, 0)
        kernel.die_with_parent()
        kernel.hold_signals()
        user = credentials.Credentials(arguments.one("write"))
        if arguments.one("how") == "namespaces":
            _in_namespaces(kernel, arguments, user)
        else:
            _by_rules_alone(kernel, arguments, user)
    except LAUNCH_ERRORS as problem:
        _refuse(problem)


def _refuse(problem: object) -> None:
    os.write(2, f"{REFUSAL_PREFIX}{problem}\n".encode(errors="replace"))
    os._exit(EXIT_REFUSED)


def _in_namespaces(
    kernel: Kernel, arguments: LauncherArguments, user: credentials.Credentials
) -> None:
    user.choose(kernel)
    spaces = NEW_NAMESPACES | (0 if user.privileged else credentials.NEW_USER)
    kernel.libc("make namespaces", "unshare", spaces)
    if not user.privileged:
        user.map_itself()
    status_reader, status_writer = os.pipe()
    first = os.fork()
    if first:
        os.close(status_writer)
        supervise.outside(kernel, first, status_reader)
    try:
        os.close(status_reader)
        kernel.die_with_parent()
        read = arguments.all("system") + arguments.all("read")
        protect, proxy = arguments.all("protect"), arguments.all("proxy")
        write, memory = arguments.all("write"), arguments.number("memory")
        devices = arguments.all("device")
        plan = filesystem.FilesystemPlan(read, write, protect, proxy, memory, devices)
        filesystem.build(kernel, plan, user)
        if proxy:
            filesystem.open_loopback(kernel)
        user.drop(kernel)
        kernel.die_with_parent()
        grants = [(path, restrictions.USE_RIGHTS) for path in (*read, "/etc", "/proc")]
        grants += [(path, restrictions.CHANGE_RIGHTS) for path in (*write, "/tmp", "/dev/shm")]
        grants.append(("/", restrictions.LIST_RIGHTS))
        _confine(kernel, arguments, grants, counted=user.counted)
        # No process may inspect the sandbox's first process; the command itself is dumpable again.
        kernel.process("be opaque", DUMPABLE, 0)
        command = os.fork()
        if command == 0:
            os.close(status_writer)
            _run(kernel, arguments)
    except LAUNCH_ERRORS as problem:
        _refuse(problem)
    else:
        supervise.inside(kernel, command, status_writer)


def _by_rules_alone(
    kernel: Kernel, arguments: LauncherArguments, user: credentials.Credentials
) -> None:
    """Without namespaces: nothing is hidden, but nothing can be opened either."""
    if arguments.all("proxy"):
        raise SandboxRefused(
            "network access needs a network namespace, and none can be created here"
        )
    if held := arguments.all("protect"):
        # Landlock rules allow whole trees and cannot exclude a path below them.
        raise SandboxRefused(
            f"'{held[0]}' must stay unchanged inside a writable folder, which needs a "
            "mount namespace, and none can be created here. Allow user namespaces or "
            "choose another "
            "engine"
        )
    user.become(kernel)
    folder = f"/tmp/evoclaw-{os.urandom(8).hex()}"
    os.mkdir(folder, 0o700)
    first = os.fork()
    if first:
        supervise.tidying(kernel, first, folder)
    try:
        kernel.die_with_parent()
        user.drop(kernel)
        os.environ["TMPDIR"] = folder
        read = arguments.all("system") + arguments.all("read")
        grants = [(path, restrictions.USE_RIGHTS) for path in read]
        grants += [(f"/proc/{name}", restrictions.USE_RIGHTS) for name in restrictions.PROC_FILES]
        grants += [(path, restrictions.CHANGE_RIGHTS) for path in (*arguments.all("write"), folder)]
        _confine(kernel, arguments, grants, counted=True)
        _run(kernel, arguments)
    except LAUNCH_ERRORS as problem:
        _refuse(problem)


def _confine(
    kernel: Kernel, arguments: LauncherArguments, grants: list[tuple[str, int]], *, counted: bool
) -> None:
    """Restrict this process and everything that it will start."""
    if os.getpid() != os.getsid(0):
        os.setsid()
    processes = arguments.number("processes") + (
        restrictions.tasks_of(os.getuid()) if counted else 1
    )
    restrictions.set_limits(
        kernel,
        memory=arguments.number("memory"),
        processes=processes,
        file_size=arguments.number("file_size"),
        open_files=arguments.number("open_files"),
    )
    os.chdir(arguments.one("cwd"))
    grants += [(f"/dev/{name}", restrictions.DEVICE_RIGHTS) for name in filesystem.DEVICE_NAMES]
    grants += [
        (path, restrictions.DEVICE_RIGHTS | restrictions.IOCTL_RIGHT)
        for path in arguments.all("device")
    ]
    network = bool(arguments.all("proxy"))
    restrictions.restrict(kernel, arguments.number("abi"), grants, network=network)
    restrictions.filter_calls(kernel, bytes.fromhex(arguments.one("filter")))


def _run(kernel: Kernel, arguments: LauncherArguments) -> None:
    """Exec the command."""
    program = arguments.argv[0]
    for number in (13, 25):  # Python ignores SIGPIPE and SIGXFSZ; a command must not inherit that.
        kernel.reset_signal(number)
    kernel.hold_signals(hold=False)
    try:
        os.execvpe(program, arguments.argv, os.environ)
    except OSError as problem:
        os.write(2, f"{program}: {problem.strerror}\n".encode(errors="replace"))
        os._exit(127 if isinstance(problem, FileNotFoundError) else 126)
