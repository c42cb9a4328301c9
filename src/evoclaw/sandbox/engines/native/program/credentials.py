"""`Credentials`: the user that a sandboxed command runs as: never root, without capabilities."""

# Loading pathlib would make every start slower.
# ruff: noqa: PTH116
import os

from evoclaw.sandbox.engines.native.program.kernel import (
    AMBIENT,
    DUMPABLE,
    KEEP_BOUND,
    MACHINE_SYSCALLS,
    Kernel,
    SandboxRefused,
)

NEW_USER = 0x10000000
SYS_ADMIN = 21
FIRST_FRESH_ID = 0x70000000
"""Ids from here on are unused; a fresh id isolates sandboxes from each other."""
MAX_ID = 0xFFFFFFFF


class Credentials:
    """The user that the launcher becomes."""

    def __init__(self, workspace: str) -> None:
        self.root = os.geteuid() == 0
        self.privileged = self.root and bool(_effective() >> SYS_ADMIN & 1)
        """Whether namespaces and id-mapped mounts are available without a user namespace."""
        found = os.stat(workspace)
        self._workspace = workspace
        self._owner, self._group = found.st_uid, found.st_gid
        self.uid, self.gid = os.geteuid(), os.getegid()
        self.ids = -1
        """The id mapping that lets a fresh user change what belongs to root; -1: none."""
        self.counted = False
        """Whether the kernel counts the user's other processes too."""

    def choose(self, kernel: Kernel) -> None:
        """Choose a user before any namespace is made."""
        if self.privileged:
            fresh = FIRST_FRESH_ID + int.from_bytes(os.urandom(3), "little")
            self.uid, self.gid = self._owner or fresh, self._group or fresh
            self.counted = self.uid != fresh
            if fresh in (self.uid, self.gid):
                self.ids = _mapping(kernel, self.uid, self.gid, fresh)
        elif self.root:
            self.become(kernel)

    def become(self, kernel: Kernel) -> None:
        """Become the workspace's owner, where ids cannot be mapped."""
        if not self.root:
            return
        if self._owner == 0:
            raise SandboxRefused(
                f"the workspace '{self._workspace}' belongs to root, commands never run as root, "
                "and mapping its owner needs CAP_SYS_ADMIN. Run as a plain user, or give the "
                f"folder to one (chown -R USER '{self._workspace}')"
            )
        self.uid, self.gid = self._owner, self._group or self._owner
        self.drop(kernel)
        # Otherwise this process's entry in /proc, with the id maps, would still belong to root.
        kernel.process("be dumpable", DUMPABLE, 1)
        kernel.die_with_parent()

    def mapped(self, path: str) -> int:
        """The id mapping for a folder: only root's folders need one."""
        return self.ids if os.stat(path).st_uid == 0 else -1

    def map_itself(self) -> None:
        """Map the user to itself in a new user namespace."""
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{self.uid} {self.uid} 1"),
            ("gid_map", f"{self.gid} {self.gid} 1"),
        ):
            _write(f"/proc/self/{name}", text)

    def drop(self, kernel: Kernel) -> None:
        """Drop all privileges of root, or of a namespace's first process."""
        last = int(_read("/proc/sys/kernel/cap_last_cap"))
        if _effective():
            for capability in range(last + 1):
                kernel.process("drop a capability", KEEP_BOUND, capability)
        kernel.process("drop ambient capabilities", AMBIENT, 4)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)
        nothing = bytes(24)
        version = (0x20080522).to_bytes(4, "little") + bytes(4)
        kernel.call("drop capabilities", MACHINE_SYSCALLS[os.uname().machine][1], version, nothing)
        if os.geteuid() == 0 or _effective():
            raise SandboxRefused("the privileges of root could not be dropped")


def _mapping(kernel: Kernel, uid: int, gid: int, fresh: int) -> int:
    """A user namespace that swaps root and the fresh id; only its mapping is used."""
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
            raise SandboxRefused(
                "cannot map the workspace's owner: user namespaces are not allowed"
            )
        for name, mine in (("uid_map", uid), ("gid_map", gid)):
            _write(f"/proc/{helper}/{name}", _swapped(fresh if mine == fresh else 0))
        return os.open(f"/proc/{helper}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for end in (ready, done, finish):
            os.close(end)
        os.waitpid(helper, 0)


def _swapped(fresh: int) -> str:
    if not fresh:
        return f"0 0 {MAX_ID}"
    rest = MAX_ID - fresh - 1
    return f"0 {fresh} 1\n1 1 {fresh - 1}\n{fresh} 0 1\n{fresh + 1} {fresh + 1} {rest}"


def _effective() -> int:
    for line in _read("/proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    raise SandboxRefused("/proc/self/status does not show our capabilities")


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
