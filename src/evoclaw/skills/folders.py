"""Lists, checks, reads and hashes the folder of a skill, which is untrusted input."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from evoclaw.core.errors import ConfigError

MAX_FILES = 1_000
MAX_DEPTH = 8
MAX_SKILL_BYTES = 32 << 20
"""Of all files of a skill together."""
MAX_TEXT_BYTES = 256 << 10
"""Of a file that is read as text."""
IGNORED = frozenset({".git"})
"""Folders that are not read, counted or hashed; no program in them is ever run."""
TOO_DEEP_REASON = f"folders are nested deeper than {MAX_DEPTH}"

_OPEN_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_OPEN_FOLDER_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY


class SkillRefused(ConfigError):
    """A skill that cannot be used, and the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class FolderEntry(Struct, frozen=True):
    """The path and stat of one file or folder of a skill."""

    path: str
    """Relative to the skill's folder, with forward slashes; `.` is the folder itself."""
    mode: int
    size: int = 0
    stamp: tuple[int, ...] = ()
    """Of a file: inode, modification and change time; differs after every change."""


def list_folder(folder: Path) -> tuple[FolderEntry, ...]:
    """List a folder recursively without following links; two equal listings mean no change.

    A folder that exceeds the limits is listed just beyond them, so that `check_folder` rejects it.
    """
    try:
        top = folder.lstat()
    except OSError:
        return ()
    found = [FolderEntry(".", top.st_mode)]
    if stat.S_ISDIR(top.st_mode):
        for entry in _below(folder, "", 1):
            found.append(entry)
            if len(found) > MAX_FILES + 1:
                break
    return tuple(found)


def _below(folder: Path, prefix: str, depth: int) -> Iterator[FolderEntry]:
    try:
        with os.scandir(folder) as entries:
            # Bounded before sorting: a folder may have millions of entries.
            names = sorted(e.name for e, _ in zip(entries, range(MAX_FILES + 2), strict=False))
    except OSError:
        names = []
    for name in names:
        path, inside = folder / name, f"{prefix}{name}"
        try:
            about = path.lstat()
        except OSError:
            continue
        if name in IGNORED and stat.S_ISDIR(about.st_mode):
            continue
        if stat.S_ISDIR(about.st_mode):
            yield FolderEntry(inside, about.st_mode)
            if depth <= MAX_DEPTH:
                yield from _below(path, f"{inside}/", depth + 1)
        else:
            stamp = (about.st_ino, about.st_mtime_ns, about.st_ctime_ns)
            yield FolderEntry(inside, about.st_mode, about.st_size, stamp)


def check_folder(folder: Path, entries: Iterable[FolderEntry]) -> dict[str, FolderEntry]:
    """The files of a folder; `SkillRefused` for links, special files and exceeded limits."""
    files: dict[str, FolderEntry] = {}
    total = 0
    for number, entry in enumerate(entries):
        if number > MAX_FILES:
            raise SkillRefused(folder, f"the skill has more than {MAX_FILES:,} files and folders")
        _check_entry(folder, entry)
        if not stat.S_ISDIR(entry.mode):
            files[entry.path] = entry
            total += entry.size
    if total > MAX_SKILL_BYTES:
        raise SkillRefused(
            folder,
            f"it has {total:,} bytes, more than {MAX_SKILL_BYTES:,}; keep large data elsewhere",
        )
    return files


def _check_entry(folder: Path, entry: FolderEntry) -> None:
    path = folder if entry.path == "." else folder / entry.path
    if stat.S_ISLNK(entry.mode):
        raise SkillRefused(path, "it is a link; replace the link with a copy of the file or folder")
    if not stat.S_ISREG(entry.mode) and not stat.S_ISDIR(entry.mode):
        raise SkillRefused(path, "it is neither a file nor a folder; remove it")
    if entry.mode & stat.S_IWOTH:
        raise SkillRefused(
            path, "every user may write to it; run `chmod -R o-w` on the folder of the skill"
        )
    if entry.path.count("/") >= MAX_DEPTH:
        raise SkillRefused(path, TOO_DEEP_REASON)
    try:
        entry.path.encode()
    except UnicodeEncodeError:
        raise SkillRefused(folder, f"the file name {entry.path!r} is not UTF-8") from None


def read_bytes(folder: Path, inside: str, limit: int) -> bytes:
    """Read a regular file below a folder without following any link."""
    path = folder / inside
    try:
        descriptor = _open_below(folder, inside)
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise SkillRefused(path, "it is not a regular file")
            data = b"" if about.st_size > limit else file.read(limit + 1)
    except OSError as problem:
        reason = "it is a link" if problem.errno == errno.ELOOP else problem.strerror
        raise SkillRefused(path, f"cannot read it: {reason}") from None
    if about.st_size > limit or len(data) > limit:
        raise SkillRefused(path, f"the file has more than {limit:,} bytes")
    return data


def _open_below(folder: Path, inside: str) -> int:
    *folders, name = inside.split("/")
    here = os.open(folder, _OPEN_FOLDER_FLAGS)
    try:
        for folder_name in folders:
            below = os.open(folder_name, _OPEN_FOLDER_FLAGS, dir_fd=here)
            os.close(here)
            here = below
        return os.open(name, _OPEN_FILE_FLAGS, dir_fd=here)
    finally:
        os.close(here)


def read_text(folder: Path, inside: str, limit: int = MAX_TEXT_BYTES) -> str:
    """Read a file as text."""
    return to_text(folder / inside, read_bytes(folder, inside, limit))


def to_text(path: Path, data: bytes) -> str:
    """Decode UTF-8; `SkillRefused` if the bytes are not UTF-8 text."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise SkillRefused(path, f"line {line} is not UTF-8 text") from None
    if "\0" in text:
        raise SkillRefused(path, "the file contains a NUL character, so it is not text")
    return text


def hash_files(folder: Path, files: Mapping[str, FolderEntry]) -> dict[str, str]:
    """The SHA-256 of every file."""
    return {
        inside: hashlib.sha256(read_bytes(folder, inside, MAX_SKILL_BYTES)).hexdigest()
        for inside in sorted(files)
    }


def digest_of(files: Mapping[str, FolderEntry], sums: Mapping[str, str]) -> str:
    """One digest over the names, executable bits and contents of all files."""
    total = hashlib.sha256()
    for inside in sorted(sums):
        executable = "x" if files[inside].mode & 0o111 else "-"
        # The length marks the end of a name, so that no two file lists encode alike.
        name = inside.encode()
        total.update(b"%d:%b%b%b" % (len(name), name, executable.encode(), sums[inside].encode()))
    return total.hexdigest()


def folder_digest(folder: Path) -> str:
    """The digest of a skill's folder that an approval pins."""
    files = check_folder(folder, list_folder(folder))
    return digest_of(files, hash_files(folder, files))
