"""The file system of a native sandbox: a fresh root with mounts of what the policy names."""

# Loading pathlib would make every start slower.
# ruff: noqa: PTH103, PTH112, PTH115, PTH120, PTH123, PTH211
import os
import stat

from evoclaw.sandbox.engines.native.program.credentials import Credentials
from evoclaw.sandbox.engines.native.program.kernel import (
    AT_FDCWD,
    MACHINE_SYSCALLS,
    MOUNT_SETATTR,
    NO_DEVICES,
    NO_SUID,
    READ_ONLY,
    Kernel,
    SandboxRefused,
)

DEVICE_NAMES = ("null", "zero", "full", "random", "urandom")
NOSUID_NODEV, NOEXEC, PRIVATE, DETACH = 0x2 | 0x4, 0x8, 0x4000 | 0x40000, 2
STAGING_FOLDERS = ("/tmp", "/mnt", "/usr")
"""Where the new root is built; the required mounts of the old root are cloned before."""
OPEN_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FilesystemPlan:
    """What goes into the new root."""

    def __init__(
        self,
        read: list[str],
        write: list[str],
        protect: list[str],
        proxy: list[str],
        memory: int,
        devices: list[str],
    ) -> None:
        self.write = [path for path in write if not _inside(path, write)]
        self.read = [path for path in read if not _inside(path, read) and not _below(path, write)]
        self.protect = protect
        self.proxy, self.memory, self.devices = proxy, memory, devices
        if "/" in self.write:
            raise SandboxRefused("the whole file system cannot be the workspace")


def _inside(path: str, folders: list[str]) -> bool:
    return any(path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _below(path: str, folders: list[str]) -> bool:
    return path in folders or _inside(path, folders)


def build(kernel: Kernel, plan: FilesystemPlan, user: Credentials) -> None:
    """Build the new root and switch to it."""
    kernel.libc("cut off the host's mounts", "mount", None, b"/", None, PRIVATE, None)
    for folder in plan.write:
        _hold_places(kernel, folder, plan.protect)
    taken = _take(kernel, plan, user)
    stage = next(folder for folder in STAGING_FOLDERS if os.path.isdir(folder))
    kernel.mount("tmpfs", stage, NOSUID_NODEV, "mode=755,size=16m")
    _furnish(kernel, stage, plan.memory)
    for path, copy in taken:
        _place(kernel, stage, path, copy)
    _name(stage, user)
    for folder in plan.write:
        _protect(kernel, stage + folder, folder, plan.protect)
    os.chdir(stage)
    kernel.call("enter the new root", MACHINE_SYSCALLS[os.uname().machine][0], b".", b".")
    kernel.libc("leave the old root", "umount2", b".", DETACH)
    os.chdir("/")
    wanted = (READ_ONLY | NO_SUID | NO_DEVICES).to_bytes(8, "little") + bytes(24)
    kernel.call("close the new root", MOUNT_SETATTR, AT_FDCWD, b"/", 0, wanted, 32)


def _take(kernel: Kernel, plan: FilesystemPlan, user: Credentials) -> list[tuple[str, int | str]]:
    """Clones of mounts, or the targets of links, parents before their children."""
    taken: list[tuple[str, int | str]] = []
    for path in plan.read:
        try:
            link = stat.S_ISLNK(os.lstat(path).st_mode)
        except (FileNotFoundError, PermissionError):
            # A path that is missing, or unreadable for this user, is missing inside too.
            continue
        taken.append(
            (path, os.readlink(path) if link else kernel.tree(path, READ_ONLY | NO_DEVICES))
        )
    taken += [(path, kernel.tree(path, NO_DEVICES, user.mapped(path))) for path in plan.write]
    taken += [(path, kernel.tree(path, READ_ONLY | NO_DEVICES)) for path in plan.proxy]
    devices = (*(f"/dev/{name}" for name in DEVICE_NAMES), *plan.devices)
    taken += [(path, kernel.tree(path)) for path in devices]
    return sorted(taken, key=lambda item: item[0].count("/"))


def _place(kernel: Kernel, stage: str, path: str, copy: int | str) -> None:
    target = stage + path
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if isinstance(copy, str):
        if not os.path.lexists(target):
            os.symlink(copy, target)
        return
    if stat.S_ISDIR(os.fstat(copy).st_mode):
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    kernel.put(copy, target)


def _furnish(kernel: Kernel, stage: str, memory: int) -> None:
    for name in ("tmp", "proc", "dev/shm", "etc"):
        os.makedirs(f"{stage}/{name}")
    kernel.mount("tmpfs", f"{stage}/tmp", NOSUID_NODEV, f"mode=1777,size={memory}")
    kernel.mount("tmpfs", f"{stage}/dev/shm", NOSUID_NODEV | NOEXEC, f"mode=1777,size={memory}")
    try:
        kernel.mount("proc", f"{stage}/proc", NOSUID_NODEV | NOEXEC)
    except SandboxRefused:
        # Containers that mask parts of /proc forbid a new one; without it, less is visible.
        os.makedirs(f"{stage}/proc/self")
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{stage}/dev/{name}")


def _name(stage: str, user: Credentials) -> None:
    """Name the user in passwd and group; the host's own files stay outside."""
    home = os.environ.get("HOME", "/").replace(":", "").replace("\n", "")
    me = f"sandboxed:x:{user.uid}:{user.gid}::{home}:/bin/sh"
    for name, text in (
        ("passwd", f"root:x:0:0::/:/bin/false\n{me}\n"),
        ("group", f"root:x:0:\nsandboxed:x:{user.gid}:\n"),
        ("hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    ):
        if not os.path.lexists(f"{stage}/etc/{name}"):
            with open(f"{stage}/etc/{name}", "x") as file:
                file.write(text)


def _hold_places(kernel: Kernel, folder: str, protected: list[str]) -> None:
    """Create each missing protected path empty, so that it can be mounted over.

    In a folder that sandboxed commands can change no link is followed: each step is opened from
    the one before. A path that ends in `/` becomes a folder, any other a file.
    """
    for path in protected:
        if not _inside(path.rstrip("/"), [folder]):
            continue
        steps = path[len(folder) :].strip("/").split("/")
        here = os.open(folder, OPEN_FOLDER_FLAGS)
        try:
            for index, step in enumerate(steps):
                last = index == len(steps) - 1
                if not _is_there(here, step):
                    _make(here, step, last and not path.endswith("/"))
                if not last:
                    here, above = os.open(step, OPEN_FOLDER_FLAGS, dir_fd=here), here
                    os.close(above)
        finally:
            os.close(here)


def _is_there(folder: int, name: str) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(found.st_mode):
        raise SandboxRefused(
            f"'{name}' is or leads to a protected path, and is a link: name its target"
        )
    return True


def _make(folder: int, name: str, file: bool) -> None:
    try:
        if file:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            os.close(os.open(name, flags, 0o644, dir_fd=folder))
        else:
            os.mkdir(name, 0o755, dir_fd=folder)
    except FileExistsError:
        # Another sandbox has just created it.
        return


def _protect(kernel: Kernel, target: str, folder: str, protected: list[str]) -> None:
    """Mount protected paths over themselves, read-only.

    The folders above them are mounted over themselves too, writable: a mount point can be neither
    renamed nor removed, and so no command can put another folder under a protected name.
    """
    inner = {path.rstrip("/")[len(folder) + 1 :] for path in protected if _inside(path, [folder])}
    above = {parent for path in inner for parent in _parents(path)} - inner
    root = os.open(target, OPEN_FOLDER_FLAGS)
    try:
        for path in sorted(inner | above, key=lambda path: path.count("/")):
            place = kernel.beneath(root, path)
            kernel.put(kernel.tree(place, READ_ONLY if path in inner else 0), place)
            os.close(place)
    finally:
        os.close(root)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


def open_loopback(kernel: Kernel) -> None:
    """Bring up the loopback interface of a new network namespace: its only interface."""
    request = b"lo".ljust(16, b"\0") + (0x1 | 0x40).to_bytes(2, "little") + bytes(22)
    socket = kernel.libc("make a socket", "socket", 2, 2, 0)
    try:
        kernel.libc("bring up the loopback", "ioctl", socket, 0x8914, request)
    finally:
        os.close(socket)
