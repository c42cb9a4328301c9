"""A program of its own: build the native cage around itself, then become the command.

Started as `WORD=VALUE… -- PROGRAM ARGUMENT…`. It knows only the standard library and takes every
decision from its words. What it cannot do as told it does not do by half: it says why, ends with
`REFUSED`, and the command never starts.
"""

# Loading pathlib would make every start slower.
# ruff: noqa: PTH102
import os
import sys

from evoclaw.sandbox.engines.native.program import credentials as person
from evoclaw.sandbox.engines.native.program import filesystem as walls
from evoclaw.sandbox.engines.native.program import restrictions as rules
from evoclaw.sandbox.engines.native.program import supervise
from evoclaw.sandbox.engines.native.program.kernel import (
    CLOSE_RANGE,
    DUMPABLE,
    REFUSED,
    SAYS,
    Kernel,
    Refused,
)

NEW_SPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""Mounts, control groups, host name, IPC, processes, network."""
PROBLEMS = (Refused, OSError, ValueError, KeyError)


class Words:
    """What the engine said."""

    def __init__(self, words: list[str]) -> None:
        cut = words.index("--")
        self.argv = words[cut + 1 :]
        self._said: dict[str, list[str]] = {}
        for word in words[:cut]:
            key, _, value = word.partition("=")
            self._said.setdefault(key, []).append(value)

    def all(self, key: str) -> list[str]:
        """Every value of a word."""
        return self._said.get(key, [])

    def one(self, key: str) -> str:
        """The only value of a word."""
        return self._said[key][0]

    def number(self, key: str) -> int:
        """The only value of a word that is a number."""
        return int(self._said[key][0])


def main() -> None:
    """Build the cage and run the command in it; end as it ended."""
    try:
        words, kernel = Words(sys.argv[1:]), Kernel()
        kernel.call("close descriptors", CLOSE_RANGE, 3, 0x7FFFFFFF, 0)
        kernel.die_with_parent()
        kernel.hold_signals()
        somebody = person.Person(words.one("write"))
        if words.one("how") == "namespaces":
            _in_namespaces(kernel, words, somebody)
        else:
            _by_rules_alone(kernel, words, somebody)
    except PROBLEMS as problem:
        _refuse(problem)


def _refuse(problem: object) -> None:
    os.write(2, f"{SAYS}{problem}\n".encode(errors="replace"))
    os._exit(REFUSED)


def _in_namespaces(kernel: Kernel, words: Words, somebody: person.Person) -> None:
    somebody.choose(kernel)
    spaces = NEW_SPACES | (0 if somebody.privileged else person.NEW_USER)
    kernel.libc("make namespaces", "unshare", spaces)
    if not somebody.privileged:
        somebody.map_itself()
    says, told = os.pipe()
    first = os.fork()
    if first:
        os.close(told)
        supervise.outside(kernel, first, says)
    try:
        os.close(says)
        kernel.die_with_parent()
        read = words.all("system") + words.all("read")
        protect, proxy = words.all("protect"), words.all("proxy")
        write, memory = words.all("write"), words.number("memory")
        walls.build(kernel, walls.Plan(read, write, protect, proxy, memory), somebody)
        if proxy:
            walls.open_loopback(kernel)
        somebody.drop(kernel)
        kernel.die_with_parent()
        grants = [(path, rules.USE) for path in (*read, "/etc", "/proc")]
        grants += [(path, rules.CHANGE) for path in (*write, "/tmp", "/dev/shm")]
        grants.append(("/", rules.LIST))
        _confine(kernel, words, grants, counted=somebody.counted)
        # The cage's first process is nobody's to look into; what the command runs is again.
        kernel.process("be opaque", DUMPABLE, 0)
        command = os.fork()
        if command == 0:
            os.close(told)
            _run(kernel, words)
    except PROBLEMS as problem:
        _refuse(problem)
    else:
        supervise.inside(kernel, command, told)


def _by_rules_alone(kernel: Kernel, words: Words, somebody: person.Person) -> None:
    """Where no namespace can be had: nothing is hidden, but nothing can be opened either."""
    if words.all("proxy"):
        raise Refused("a way to the network needs a network namespace, and none can be made here")
    if held := words.all("protect"):
        # Landlock's rules allow whole trees: none says "all of this but that".
        raise Refused(
            f"'{held[0]}' may not be changed though it lies in a folder that may, which needs a "
            "mount namespace, and none can be made here. Allow user namespaces or choose another "
            "engine"
        )
    somebody.become(kernel)
    folder = f"/tmp/evoclaw-{os.urandom(8).hex()}"
    os.mkdir(folder, 0o700)
    first = os.fork()
    if first:
        supervise.tidying(kernel, first, folder)
    try:
        kernel.die_with_parent()
        somebody.drop(kernel)
        os.environ["TMPDIR"] = folder
        read = words.all("system") + words.all("read")
        grants = [(path, rules.USE) for path in read]
        grants += [(f"/proc/{name}", rules.USE) for name in rules.PROC_FILES]
        grants += [(path, rules.CHANGE) for path in (*words.all("write"), folder)]
        _confine(kernel, words, grants, counted=True)
        _run(kernel, words)
    except PROBLEMS as problem:
        _refuse(problem)


def _confine(kernel: Kernel, words: Words, grants: list[tuple[str, int]], *, counted: bool) -> None:
    """What holds for this process and for all that it will ever start."""
    if os.getpid() != os.getsid(0):
        os.setsid()
    processes = words.number("processes") + (rules.tasks_of(os.getuid()) if counted else 1)
    rules.set_limits(
        kernel,
        memory=words.number("memory"),
        processes=processes,
        file_size=words.number("file_size"),
        open_files=words.number("open_files"),
    )
    os.chdir(words.one("cwd"))
    grants += [(f"/dev/{name}", rules.DEVICE) for name in walls.DEVICES]
    network = bool(words.all("proxy"))
    rules.restrict(kernel, words.number("abi"), grants, network=network)
    rules.filter_calls(kernel, bytes.fromhex(words.one("filter")))


def _run(kernel: Kernel, words: Words) -> None:
    """Become the command."""
    program = words.argv[0]
    for number in (13, 25):  # Python ignores SIGPIPE and SIGXFSZ; a command must not inherit that.
        kernel.reset_signal(number)
    kernel.hold_signals(hold=False)
    try:
        os.execvpe(program, words.argv, os.environ)
    except OSError as problem:
        os.write(2, f"{program}: {problem.strerror}\n".encode(errors="replace"))
        os._exit(127 if isinstance(problem, FileNotFoundError) else 126)
