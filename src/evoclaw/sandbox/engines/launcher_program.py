"""A standalone program: prepares what an engine needs, drops root, and execs the engine.

`python -I -S launcher_program.py PLAN PROGRAM ARGUMENT...`, where PLAN is a JSON object
(`LaunchPlan` in `launch.py` writes it). As root it mounts the folders of the sandbox in a private
staging folder, each id-mapped so that its owner appears as the service user and the other way
round: files that the command creates belong to the owner of the folder, yet the command runs as
the service user. If a folder cannot be mounted so, the launch fails: nothing ever runs as root.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import stat
import struct
import sys

# Importing typing and pathlib would take longer than the rest of the program.
# ruff: noqa: PTH101, PTH102, PTH103, PTH116, PTH120, PTH123
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NEWNS, NEWUSER = 0x00020000, 0x10000000
NOSUID, NODEV, REC, SLAVE = 2, 4, 0x4000, 1 << 19
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
"""System calls, the same on every architecture."""
AT_FDCWD, EMPTY_PATH, RECURSIVE = -100, 0x1000, 0x8000
CLONE_TREE, FROM_EMPTY = 1, 0x4
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_IDMAP = 1, 2, 4, 0x00100000
MAX_ID = 65536
KEYCTL = {"x86_64": 250, "aarch64": 219}
JOIN_SESSION_KEYRING = 1
EXIT_NOT_PREPARED = 125
"""The exit code when the sandbox cannot be prepared."""

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Prepare, then exec the program."""
    plan, program = json.loads(sys.argv[1]), sys.argv[2:]
    number = KEYCTL.get(os.uname().machine)
    if number is not None:
        # A process with the parent's session keyring could read its keys.
        libc.syscall(number, JOIN_SESSION_KEYRING, None)
    try:
        for descriptor, text in plan["files"].items():
            pass_text(int(descriptor), text)
        if plan["uid"] is not None:
            stage(plan)
            become(plan["uid"], plan["gid"], plan["keep_root"])
        os.execvpe(program[0], program, os.environ)
    except OSError as problem:
        os.write(2, f"cannot prepare the sandbox: {problem}\n".encode())
        os._exit(EXIT_NOT_PREPARED)


def check(answer: int, what: str) -> int:
    """Raise `OSError` if a system call failed."""
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} ({what})")
    return answer


def pass_text(descriptor: int, text: str) -> None:
    """Open a descriptor at which the engine reads a text."""
    held = os.memfd_create("sandbox")
    os.write(held, text.encode())
    os.lseek(held, 0, os.SEEK_SET)
    os.dup2(held, descriptor, inheritable=True)


def stage(plan: dict[str, Any]) -> None:
    """Mount the folders of the sandbox, owners swapped, in a private mount namespace."""
    check(libc.unshare(NEWNS), "a mount namespace of our own")
    check(libc.mount(None, b"/", None, ctypes.c_ulong(REC | SLAVE), None), "the mounts as our own")
    trees = [
        (tree["place"], clone(tree, plan["uid"], plan["gid"]), tree["path"])
        for tree in plan["trees"]
    ]
    if plan["over"]:
        cover(plan["stage"], plan["over"])
    if plan["staged"]:
        mount_empty(plan["stage"])
    else:
        for folder in closed_parents([path for _, _, path in trees]):
            mount_empty(folder)
        # A tree inside another one is mounted after it.
        trees.sort(key=lambda item: item[2].count("/"))
    for place, tree, path in trees:
        if not os.path.lexists(place):
            os.makedirs(os.path.dirname(place), 0o755, exist_ok=True)
            make_mount_point(place, tree)
        move(tree, place, path)


def closed_parents(paths: list[str]) -> list[str]:
    """The outermost folders above these paths that the service user may not pass through.

    In our own mount namespace they are replaced by empty ones that hold these paths alone.
    """
    found: set[str] = set()
    for path in paths:
        parts = path.split("/")[1:-1]
        above = ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]
        # What is inside another tree belongs to the service user there.
        inside = [folder for folder in above if any(below(folder, tree) for tree in paths)]
        closed = (
            folder for folder in above if folder not in inside and not os.stat(folder).st_mode & 1
        )
        found.update(list(closed)[:1])
    return sorted(found)


def below(path: str, folder: str) -> bool:
    """Whether a path is a folder or below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def mount_empty(folder: str) -> None:
    """Mount an empty tmpfs over a folder."""
    flags = ctypes.c_ulong(NOSUID | NODEV)
    done = libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, b"mode=755,size=1m")
    check(done, f"a tmpfs on {folder}")


def move(tree: int, place: str, path: str) -> None:
    """Mount a cloned tree at a path."""
    done = libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(place), FROM_EMPTY)
    check(done, f"mounting {path}")
    os.close(tree)


def cover(folder: str, texts: dict[str, str]) -> None:
    """Mount texts over files; the folder holds them only until they are mounted."""
    mount_empty(folder)
    for number, (path, text) in enumerate(texts.items()):
        written = f"{folder}/{number}"
        with open(written, "w") as file:
            file.write(text)
        os.chmod(written, 0o644)
        flags = CLONE_TREE | os.O_CLOEXEC
        tree = libc.syscall(OPEN_TREE, AT_FDCWD, os.fsencode(written), flags)
        move(check(tree, f"looking at {written}"), path, path)
    check(libc.umount2(os.fsencode(folder), 0), f"giving back {folder}")


def make_mount_point(place: str, tree: int) -> None:
    """Create the folder or file that a tree is mounted on."""
    if stat.S_ISDIR(os.fstat(tree).st_mode):
        os.mkdir(place, 0o755)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))


def clone(tree: dict[str, Any], uid: int, gid: int) -> int:
    """Clone the mount at a path, with its owner swapped for the service user."""
    flags = CLONE_TREE | RECURSIVE | os.O_CLOEXEC
    held = libc.syscall(OPEN_TREE, AT_FDCWD, os.fsencode(tree["path"]), flags)
    check(held, f"looking at {tree['path']}")
    owner = os.fstat(held)
    space = user_namespace((owner.st_uid, uid), (owner.st_gid, gid))
    attributes = ATTR_NOSUID | ATTR_NODEV | (0 if tree["writable"] else ATTR_RDONLY)
    mount_attributes = struct.pack("QQQQ", attributes | ATTR_IDMAP, 0, 0, space)
    done = libc.syscall(
        MOUNT_SETATTR, held, b"", EMPTY_PATH | RECURSIVE, mount_attributes, len(mount_attributes)
    )
    os.close(space)
    if done < 0 and not tree["writable"]:
        # Read-only without the mapping: the service user then reads only world-readable files.
        mount_attributes = struct.pack("QQQQ", attributes, 0, 0, 0)
        done = libc.syscall(
            MOUNT_SETATTR,
            held,
            b"",
            EMPTY_PATH | RECURSIVE,
            mount_attributes,
            len(mount_attributes),
        )
    check(done, f"exchanging the owner of {tree['path']}")
    return held


def user_namespace(*pairs: tuple[int, int]) -> int:
    """A user namespace that maps the owner on disk to the service user, the rest to itself."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        done = libc.unshare(NEWUSER)
        os.write(writer, b"1" if done == 0 else b"0")
        signal.pause()
        os._exit(0)
    try:
        if os.read(reader, 1) != b"1":
            raise OSError(1, "user namespaces are not allowed")
        for name, (owner, service) in zip(("uid_map", "gid_map"), pairs, strict=True):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(mapping(owner, service))
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(reader)
        os.close(writer)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def mapping(owner: int, service: int) -> str:
    """An id map that swaps two ids and leaves the others unchanged."""
    lines = [f"{owner} {service} 1"]
    if owner != service:
        lines.append(f"{service} {owner} 1")
    edges = sorted({owner, service})
    starts = [0, *(edge + 1 for edge in edges)]
    ends = [*edges, MAX_ID]
    lines += [
        f"{start} {start} {end - start}"
        for start, end in zip(starts, ends, strict=True)
        if end > start
    ]
    return "\n".join(lines) + "\n"


def become(uid: int, gid: int, keep_root: bool) -> None:
    """Drop root for good."""
    if keep_root:
        return
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


if __name__ == "__main__":
    main()
