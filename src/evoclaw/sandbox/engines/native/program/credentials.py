"""Who the caged command is: never root, and with no capability at all."""

# Loading pathlib would make every start slower.
# ruff: noqa: PTH116
import os

from evoclaw.sandbox.engines.native.program.kernel import (
    AMBIENT,
    DUMPABLE,
    KEEP_BOUND,
    MACHINES,
    Kernel,
    Refused,
)

NEW_USER = 0x10000000
SYS_ADMIN = 21
FRESH = 0x70000000
"""Ids from here on belong to nobody; a fresh one keeps cages apart from each other."""
EVERYONE = 0xFFFFFFFF


class Person:
    """Whom the launcher becomes."""

    def __init__(self, workspace: str) -> None:
        self.root = os.geteuid() == 0
        self.privileged = self.root and bool(_effective() >> SYS_ADMIN & 1)
        """Whether namespaces and mapped mounts can be had without a user namespace."""
        found = os.stat(workspace)
        self._workspace = workspace
        self._owner, self._group = found.st_uid, found.st_gid
        self.uid, self.gid = os.geteuid(), os.getegid()
        self.ids = -1
        """The mapping that lets a fresh user change what belongs to root; -1: none."""
        self.counted = False
        """Whether the kernel counts the user's other processes too."""

    def choose(self, kernel: Kernel) -> None:
        """Settle on a user before any namespace is made."""
        if self.privileged:
            fresh = FRESH + int.from_bytes(os.urandom(3), "little")
            self.uid, self.gid = self._owner or fresh, self._group or fresh
            self.counted = self.uid != fresh
            if fresh in (self.uid, self.gid):
                self.ids = _mapping(kernel, self.uid, self.gid, fresh)
        elif self.root:
            self.become(kernel)

    def become(self, kernel: Kernel) -> None:
        """Be the workspace's owner from now on, where nothing can be mapped."""
        if not self.root:
            return
        if self._owner == 0:
            raise Refused(
                f"the workspace '{self._workspace}' belongs to root, commands never run as root, "
                "and mapping its owner needs CAP_SYS_ADMIN. Run as a plain user, or give the "
                f"folder to one (chown -R USER '{self._workspace}')"
            )
        self.uid, self.gid = self._owner, self._group or self._owner
        self.drop(kernel)
        # Otherwise our own entry under /proc would stay root's, and with it the id maps.
        kernel.process("be dumpable", DUMPABLE, 1)
        kernel.die_with_parent()

    def mapped(self, path: str) -> int:
        """The mapping for a folder: what does not belong to root needs none."""
        return self.ids if os.stat(path).st_uid == 0 else -1

    def map_itself(self) -> None:
        """Be the same user inside a new user namespace."""
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{self.uid} {self.uid} 1"),
            ("gid_map", f"{self.gid} {self.gid} 1"),
        ):
            _write(f"/proc/self/{name}", text)

    def drop(self, kernel: Kernel) -> None:
        """Give up everything that root, or a namespace's first process, could do."""
        last = int(_read("/proc/sys/kernel/cap_last_cap"))
        if _effective():
            for one in range(last + 1):
                kernel.process("drop a capability", KEEP_BOUND, one)
        kernel.process("drop ambient capabilities", AMBIENT, 4)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)
        nothing = bytes(24)
        version = (0x20080522).to_bytes(4, "little") + bytes(4)
        kernel.call("drop capabilities", MACHINES[os.uname().machine][1], version, nothing)
        if os.geteuid() == 0 or _effective():
            raise Refused("the rights of root could not be given up")


def _mapping(kernel: Kernel, uid: int, gid: int, fresh: int) -> int:
    """A user namespace that swaps root and the fresh id on disk; only its mapping is used."""
    ready, made = os.pipe()
    done, finish = os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            kernel.libc("make a user namespace", "unshare", NEW_USER)
            os.write(made, b".")
            os.close(finish)
            os.read(done, 1)
        finally:
            os._exit(0)
    try:
        os.close(made)
        if not os.read(ready, 1):
            raise Refused("map the workspace's owner: no user namespace can be made")
        for name, mine in (("uid_map", uid), ("gid_map", gid)):
            _write(f"/proc/{helper}/{name}", _swapped(fresh if mine == fresh else 0))
        return os.open(f"/proc/{helper}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for one in (ready, done, finish):
            os.close(one)
        os.waitpid(helper, 0)


def _swapped(fresh: int) -> str:
    if not fresh:
        return f"0 0 {EVERYONE}"
    rest = EVERYONE - fresh - 1
    return f"0 {fresh} 1\n1 1 {fresh - 1}\n{fresh} 0 1\n{fresh + 1} {fresh + 1} {rest}"


def _effective() -> int:
    for line in _read("/proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    raise Refused("/proc does not say which capabilities we hold")


def _read(path: str) -> str:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 65536).decode()
    finally:
        os.close(file)


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
