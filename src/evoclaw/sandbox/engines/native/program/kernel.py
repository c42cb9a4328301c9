"""`Kernel`: the system calls that Python has no names for."""

import ctypes
import errno
import os

EXIT_REFUSED = 125
"""Exit status when the sandbox cannot be built; stderr has the reason after `REFUSAL_PREFIX`."""
REFUSAL_PREFIX = "evoclaw sandbox: "

OPENAT2, OPEN_TREE, MOVE_MOUNT, CLOSE_RANGE, MOUNT_SETATTR = 437, 428, 429, 436, 442
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
MACHINE_SYSCALLS = {"x86_64": (155, 126), "aarch64": (41, 91)}
"""Where the numbers differ: of `pivot_root` and `capset`."""
AT_FDCWD = -100
"""The kernel's AT_FDCWD."""
EMPTY_PATH, RECURSIVE, CLONE = 0x1000, 0x8000, 1 | os.O_CLOEXEC
FROM_EMPTY, TO_EMPTY = 0x04, 0x40
NO_LINKS_BENEATH = 0x04 | 0x08
READ_ONLY, NO_SUID, NO_DEVICES, MAP_IDS = 0x1, 0x2, 0x4, 0x100000
DIE_WITH_PARENT, KEEP_BOUND, DUMPABLE, NO_NEW_PRIVILEGES, AMBIENT = 1, 24, 4, 38, 47
SET_SECCOMP, FILTER = 22, 2
HUP, INT, KILL, TERM, CHLD = 1, 2, 9, 15, 17
HELD_SIGNALS = (HUP, INT, TERM, CHLD)
"""Signals that the processes around a command wait for, instead of being interrupted by them."""


class SandboxRefused(Exception):
    """The sandbox cannot be built as requested."""


class Kernel:
    """System calls; every failure raises a `SandboxRefused` that says what was tried."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long
        self._signals = (ctypes.c_ulong * 16)(sum(1 << (number - 1) for number in HELD_SIGNALS))

    def libc(self, what: str, name: str, *arguments: object) -> int:
        """Call a function of the C library."""
        return self._checked(what, getattr(self._libc, name)(*self._wide(arguments)))

    def call(self, what: str, number: int, *arguments: object) -> int:
        """Call the kernel by number."""
        wide = self._wide((number, *arguments))
        return self._checked(what, self._libc.syscall(*wide))

    def _wide(self, arguments: tuple[object, ...]) -> list[object]:
        return [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]

    def _checked(self, what: str, answer: int) -> int:
        if answer < 0:
            raise SandboxRefused(f"{what}: {os.strerror(ctypes.get_errno())}")
        return answer

    def process(self, what: str, *arguments: int) -> None:
        """Change something about this process, by `prctl`."""
        self.libc(what, "prctl", *arguments, *(0,) * (5 - len(arguments)))

    def die_with_parent(self) -> None:
        """Be killed when the parent ends; a change of user resets this."""
        self.process("die with the caller", DIE_WITH_PARENT, KILL)

    def hold_signals(self, *, hold: bool = True) -> None:
        """Block the held signals, or unblock them."""
        self.libc("hold signals", "sigprocmask", 0 if hold else 1, self._signals, None)

    def next_signal(self) -> int:
        """Wait for one of the held signals."""
        while True:
            number = self._libc.sigwaitinfo(self._signals, None)
            if number > 0:
                return number
            if ctypes.get_errno() != errno.EINTR:
                self._checked("wait for signals", number)

    def reset_signal(self, number: int) -> None:
        """Restore the default action; it cannot fail, and returns an address."""
        self._libc.signal(number, None)

    def landlock(self) -> int:
        """The version of Landlock; 0 without Landlock."""
        return max(0, self._libc.syscall(*self._wide((CREATE_RULESET, None, 0, 1))))

    def limit(self, what: str, number: int, value: int) -> None:
        """Set a resource limit for good."""
        pair = ctypes.c_ulong * 2
        had = pair()
        self.libc(what, "getrlimit", number, had)
        value = min(value, had[1])
        self.libc(what, "setrlimit", number, pair(value, value))

    def beneath(self, folder: int, path: str) -> int:
        """Open a path below a folder, following no link."""
        how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, NO_LINKS_BENEATH)
        return self.call(
            f"open '{path}' without links", OPENAT2, folder, os.fsencode(path), how, 24
        )

    def tree(self, source: int | str, attributes: int = 0, ids: int = -1) -> int:
        """A detached clone of a mounted tree, with its attributes already set."""
        where, path = (AT_FDCWD, os.fsencode(source)) if isinstance(source, str) else (source, b"")
        flags = CLONE | RECURSIVE | (0 if path else EMPTY_PATH)
        copy = self.call(f"take '{source}'", OPEN_TREE, where, path, flags)
        attributes |= NO_SUID | (MAP_IDS if ids >= 0 else 0)
        wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, max(ids, 0))
        what = f"map the owner of '{source}'" if ids >= 0 else f"restrict '{source}'"
        self.call(what, MOUNT_SETATTR, copy, b"", EMPTY_PATH | RECURSIVE, wanted, 32)
        return copy

    def put(self, copy: int, target: int | str) -> None:
        """Mount a detached tree."""
        where, path = (AT_FDCWD, os.fsencode(target)) if isinstance(target, str) else (target, b"")
        flags = FROM_EMPTY | (0 if path else TO_EMPTY)
        self.call(f"mount '{target}'", MOVE_MOUNT, copy, b"", where, path, flags)
        os.close(copy)

    def mount(self, kind: str, target: str, flags: int, options: str = "") -> None:
        """Mount a file system that has no device."""
        name, said = kind.encode(), options.encode()
        self.libc(f"mount {kind}", "mount", name, os.fsencode(target), name, flags, said)
