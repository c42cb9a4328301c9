"""Opens a path that must stay beneath a folder, enforced by the kernel when it is opened.

Checking a path first and opening it later is a race: a link may be swapped in between; `openat2`
does both at once. Kernels without it get a walk that opens one component at a time.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable
from functools import cache

OPENAT2 = 437
"""The system call's number, the same on every architecture."""
NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH = 0x01, 0x02, 0x04, 0x08
MAX_RACE_RETRIES = 64
"""How often `openat2` is retried because of a concurrent rename."""
MAX_LINKS = 40
OPEN_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class OpenHow(ctypes.Structure):
    """The kernel's `struct open_how`."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_beneath(
    folder: int, path: str, flags: int, *, links: bool = True, mounts: bool = False
) -> int:
    """Open `path` below the open `folder`; `OSError` EXDEV if it leads outside.

    Args:
        folder: A directory's descriptor.
        path: Relative to it.
        flags: As for `os.open`; nothing is ever created.
        links: Whether links that stay inside are followed; if not, any link is ELOOP.
        mounts: Whether the path may cross into another file system mounted inside.
    """
    # openat2 rejects combinations of flags that have no effect.
    flags |= os.O_CLOEXEC | (0 if flags & os.O_PATH else os.O_NOCTTY)
    if has_openat2():
        return _openat2(folder, path, flags, links=links, mounts=mounts)
    return walk_beneath(folder, path, flags, links=links, mounts=mounts)


@cache
def has_openat2() -> bool:
    """Whether this kernel has `openat2` and no seccomp filter denies it."""
    folder = os.open("/", OPEN_FOLDER_FLAGS)
    try:
        os.close(_openat2(folder, ".", OPEN_FOLDER_FLAGS, links=True, mounts=True))
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def _openat2(folder: int, path: str, flags: int, *, links: bool, mounts: bool) -> int:
    resolve = BENEATH | NO_MAGICLINKS
    resolve |= 0 if links else NO_SYMLINKS
    resolve |= 0 if mounts else NO_XDEV
    how = OpenHow(flags, 0, resolve)
    name = os.fsencode(path)
    for _ in range(MAX_RACE_RETRIES):
        opened = _syscall()(OPENAT2, folder, name, ctypes.byref(how), ctypes.sizeof(how))
        if opened >= 0:
            return opened
        problem = ctypes.get_errno()
        if problem not in (errno.EAGAIN, errno.EINTR):
            raise OSError(problem, os.strerror(problem), path)
    raise OSError(errno.EAGAIN, "the folders above it keep being moved", path)


@cache
def _syscall() -> Callable[..., int]:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return call


def walk_beneath(folder: int, path: str, flags: int, *, links: bool, mounts: bool) -> int:
    """Emulate `openat2`, one component at a time, without using a name twice."""
    if path.startswith("/"):
        raise _outside(path)
    walk = _BeneathWalk(folder, links=links, mounts=mounts)
    try:
        return walk.open(path, flags)
    finally:
        walk.close()


def _outside(path: str) -> OSError:
    return OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)


class _BeneathWalk:
    """The folders from the root down to the current one, each held open."""

    def __init__(self, folder: int, *, links: bool, mounts: bool) -> None:
        self._links, self._mounts = links, mounts
        self._open = [os.open(".", OPEN_FOLDER_FLAGS, dir_fd=folder)]
        self._device = os.fstat(folder).st_dev
        self._followed = 0

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)

    def open(self, path: str, flags: int) -> int:
        todo = _components(path)
        if path.endswith(("/", "/.")):
            flags |= os.O_DIRECTORY
        while todo:
            name = todo.pop()
            if name == "..":
                self._up(path)
                continue
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._open[-1])
            last = not todo
            if stat.S_ISLNK(os.fstat(found).st_mode) and not (last and flags & os.O_NOFOLLOW):
                todo.extend(self._follow(found, path))
            elif last:
                os.close(found)
                return self._last(name, path, flags)
            else:
                self._down(found, path)
        return self._last(".", path, flags)

    def _last(self, name: str, path: str, flags: int) -> int:
        # NOFOLLOW: it was no link a moment ago; if it is one now, that is an attack.
        opened = os.open(name, flags | os.O_NOFOLLOW, dir_fd=self._open[-1])
        try:
            self._same_device(opened, path)
        except OSError:
            os.close(opened)
            raise
        return opened

    def _up(self, path: str) -> None:
        if len(self._open) == 1:
            raise _outside(path)
        os.close(self._open.pop())

    def _down(self, found: int, path: str) -> None:
        self._open.append(found)
        if not stat.S_ISDIR(os.fstat(found).st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self._same_device(found, path)

    def _follow(self, found: int, path: str) -> list[str]:
        try:
            target = os.readlink("", dir_fd=found)
        finally:
            os.close(found)
        self._followed += 1
        if not self._links or self._followed > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            raise _outside(path)
        return _components(target)

    def _same_device(self, found: int, path: str) -> None:
        # A bind mount of the same file system is not seen here; `openat2` sees it.
        if not self._mounts and os.fstat(found).st_dev != self._device:
            raise _outside(path)


def _components(path: str) -> list[str]:
    """The names of a path, last one first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]
