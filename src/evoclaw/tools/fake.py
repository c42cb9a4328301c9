"""`FakeOps`: in-memory files and scripted processes, for tests, examples and the demo."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import CompletedProcess, FileStat

MAX_PATH_CHARS = 4096


class FakeOps:
    """A fake machine: implements both `FileOps` and `ExecOps`."""

    def __init__(
        self,
        files: Mapping[str, str | bytes] | None = None,
        *,
        commands: Mapping[str, str | CompletedProcess] | None = None,
    ) -> None:
        """Set up the machine.

        Args:
            files: Path to content.
            commands: The result of each command: text for success, or a `Completed`. The key is
                the command of `bash -c`, or the program and its arguments joined by spaces.
        """
        self.files: dict[str, bytes] = {
            path: content.encode() if isinstance(content, str) else content
            for path, content in (files or {}).items()
        }
        self.commands = dict(commands or {})
        self.ran: list[tuple[str, ...]] = []
        """The commands that were run, in order."""
        self._clock = 0.0
        self._times: dict[str, float] = {}

    async def read(self, path: str, *, start: int = 0, limit: int | None = None) -> bytes:
        """Read up to `limit` bytes of a file from byte `start`."""
        about = await self.stat(path)
        if about.kind == "dir":
            raise ToolFailure(ErrorKind.INVALID_PARAMS, f"'{path}' is a folder.")
        data = self.files[about.path]
        return data[start:] if limit is None else data[start : start + limit]

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file."""
        name = _normal(path)
        above = posixpath.dirname(name)
        if name in self._folders() or path.endswith("/"):
            raise ToolFailure(ErrorKind.INVALID_PARAMS, f"'{path}' is a folder.")
        while above:
            if above in self.files:
                raise ToolFailure(ErrorKind.INVALID_PARAMS, f"'{above}' is not a folder.")
            above = posixpath.dirname(above)
        self._clock += 1
        self._times[name] = self._clock
        self.files[name] = data

    async def remove(self, path: str) -> None:
        """Delete a file."""
        about = await self.stat(path)
        if about.kind == "dir" or path.endswith("/"):
            raise ToolFailure(ErrorKind.INVALID_PARAMS, f"'{path}' is a folder.")
        del self.files[about.path]

    async def stat(self, path: str) -> FileStat:
        """The kind, size and time of a file or folder."""
        name = _normal(path)
        if name in self.files:
            return FileStat(name, "file", len(self.files[name]), self._times.get(name, 0.0))
        if name in self._folders():
            return FileStat(name, "dir", 0, 0.0)
        raise ToolFailure(ErrorKind.NOT_FOUND, f"'{path}' does not exist.")

    async def walk(self, path: str = ".") -> AsyncGenerator[FileStat]:
        """Yield every entry below a folder in sorted order."""
        about = await self.stat(path)
        if about.kind != "dir":
            raise ToolFailure(ErrorKind.INVALID_PARAMS, f"'{path}' is not a folder.")
        prefix = "" if about.path == "." else about.path + "/"
        below = {name for name in (*self.files, *self._folders()) if name.startswith(prefix)}
        for name in sorted(below - {".", about.path}, key=lambda name: name.split("/")):
            yield await self.stat(name)

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        on_output: Callable[[str], None] | None = None,
        max_output: int = 1 << 20,
    ) -> CompletedProcess:
        """Return the scripted result; an unknown command fails with exit code 127."""
        if (await self.stat(cwd)).kind != "dir":
            raise ToolFailure(ErrorKind.INVALID_PARAMS, f"'{cwd}' is not a folder.")
        self.ran.append(tuple(argv))
        command = argv[2] if tuple(argv[:2]) == ("bash", "-c") else " ".join(argv)
        answer = self.commands.get(command)
        if isinstance(answer, CompletedProcess):
            done = answer
        elif answer is not None:
            done = _completed(0, answer.encode(), b"")
        else:
            done = _completed(127, b"", f"bash: {command}: command not found\n".encode())
        if on_output is not None and done.stdout + done.stderr:
            on_output((done.stdout + done.stderr).decode(errors="replace"))
        return done

    def _folders(self) -> set[str]:
        found = {"."}
        for name in self.files:
            while name := posixpath.dirname(name):
                found.add(name)
        return found


def _completed(code: int, stdout: bytes, stderr: bytes) -> CompletedProcess:
    return CompletedProcess(code, stdout, stderr, len(stdout), len(stderr), "none")


def _normal(path: str) -> str:
    if not path or "\0" in path or len(path) > MAX_PATH_CHARS:
        raise ToolFailure(ErrorKind.INVALID_PARAMS, "The path is empty, too long, or has a NUL.")
    name = posixpath.normpath(path)
    if name.startswith("/") or name == ".." or name.startswith("../"):
        raise ToolFailure(ErrorKind.PERMISSION_DENIED, f"'{path}' is outside the workspace.")
    return name
