"""For the tests of the store: a small schema, damage, a small disk, and processes to kill."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from evoclaw.store.calls.commands import CommandStore, QueueFull
from evoclaw.store.calls.journal import CallState, Journal, JournalEntry
from evoclaw.store.databases.database import Connection, Schema, add_checksum
from evoclaw.store.databases.sqlite import SqliteDatabase

ROOT = Path(__file__).parent.parent.parent
SCHEMA = Schema(
    "test store",
    (("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT UNIQUE, value BLOB) STRICT",),),
    checksummed=(("things", ("value",)),),
)


def add(name: str, size: int = 100) -> Work:
    """A write of one row."""
    return Work(name, add_checksum(b"v" * size))


class Work:
    """One row to insert; the number it got is the answer."""

    def __init__(self, name: str, value: bytes) -> None:
        self.name, self.value = name, value

    def __call__(self, connection: Connection) -> int:
        values = (self.name, self.value)
        statement = "INSERT INTO things (name, value) VALUES (?, ?) RETURNING id"
        return connection.execute(statement, values).fetchone()[0]


def names(connection: Connection) -> list[str]:
    """The names of all rows, in order."""
    return [row[0] for row in connection.execute("SELECT name FROM things ORDER BY id")]


def flip(path: Path, bit: int) -> None:
    """Turn one bit of a file over."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def open_descriptors(folder: Path) -> list[str]:
    """The files below a folder that this process has open."""
    found: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found


@contextmanager
def small_disk(folder: Path, size: int = 1 << 20) -> Generator[Path]:
    """A file system of its own that is soon full."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except OSError as problem:
        pytest.skip(f"no mount here: {problem}")
    if done.returncode:
        pytest.skip(f"mounting a small disk is not allowed here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=30)


def fill(disk: Path, name: str = "ballast") -> Path:
    """Take all the room there is."""
    ballast = disk / name
    with ballast.open("wb", buffering=0) as file:
        try:
            for size in (1 << 16, 1 << 12):
                while file.write(b"\0" * size) == size:
                    pass
        except OSError:
            return ballast
    return ballast


@contextmanager
def child(kind: str, *arguments: object) -> Generator[subprocess.Popen[bytes]]:
    """Another process that does what this file's `main` says; killed at the end."""
    command = [sys.executable, "-m", "tests.support.stores", kind, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    """What a child says."""
    assert process.stdout is not None
    return process.stdout


def killed_after(kind: str, lines: int, *arguments: object) -> list[str]:
    """All that a child said before it was killed, some time after so many lines."""
    with child(kind, *arguments) as process:
        said = [next(output(process)) for _ in range(lines)]
        process.kill()
        said += output(process).readlines()
    return [line.decode().strip() for line in said]


def say(text: str) -> None:
    """One line to the parent, in one write."""
    os.write(1, f"{text}\n".encode())


async def write_things(path: Path) -> None:
    """Eight writers that say what was stored."""
    database = await SqliteDatabase.open(path, SCHEMA)

    async def writer(number: int) -> None:
        for count in range(10_000):
            name = f"{number}.{count}"
            await database.write(add(name))
            say(name)

    await asyncio.gather(*(writer(number) for number in range(8)))


async def serve_calls(path: Path) -> None:
    """Calls from first to last, each step said when the journal has it."""
    journal = await Journal.open(path)

    async def serve(number: int) -> None:
        for count in range(10_000):
            name = f"run.{number}.{count}"
            await journal.receive(JournalEntry(name, "run", 1, "digest", b"command"))
            say(f"{name} received")
            await journal.start(name, "boot")
            say(f"{name} running")
            await journal.finish(name, CallState.SUCCEEDED, name.encode())
            say(f"{name} succeeded")

    await asyncio.gather(*(serve(number) for number in range(4)))


async def put_commands(path: Path, count: int, cap: int) -> None:
    """Put the same commands as everybody else; say what came of each."""
    async with await CommandStore.open(path) as store:

        async def put(number: int) -> None:
            name = f"run.{number}"
            try:
                stored = await store.put(name, "pi", "run", b"payload", None, cap=cap)
            except QueueFull:
                say(f"{name} full")
            else:
                say(f"{name} {stored.kind}")

        for start in range(0, count, 10):
            await asyncio.gather(*(put(number) for number in range(start, start + 10)))


async def open_once(path: Path) -> None:
    """Open and close a store that others open too."""
    async with await SqliteDatabase.open(path, SCHEMA) as database:
        await database.write(add(str(os.getpid())))
        say("opened")


def main() -> None:
    """What a child does."""
    signal.alarm(60)
    kind, path, *numbers = sys.argv[1:]
    match kind:
        case "things":
            asyncio.run(write_things(Path(path)))
        case "calls":
            asyncio.run(serve_calls(Path(path)))
        case "commands":
            asyncio.run(put_commands(Path(path), *map(int, numbers)))
        case _:
            asyncio.run(open_once(Path(path)))


if __name__ == "__main__":
    main()
