"""The canary: no engine is used before a program that tries to get out of it has failed to."""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import Completed, ExecOps
from evoclaw.core.sandboxes import Confines, Engine
from evoclaw.sandbox.engines.host_view import interpreter

PATIENCE = 30.0
"""Seconds for all of it: engines that build a container take a while on a small device."""
MOST_PROTECTED = 8
"""Protected paths that are tried: they are all mounted in the same way."""
OPEN_TO_ALL = ("/", "/etc", "/usr", "/usr/bin", "/var", "/root", "/home", "/opt", "/srv", "/tmp")
PLAIN = frozenset(
    {"PATH", "HOME", "LANG", "TERM", "PWD", "SHLVL", "_", "TMPDIR", "LC_CTYPE", "SHELL", "USER"}
    | {"LOGNAME", "HOSTNAME"}
)
"""Variables that every command is given, by us or by the engine, and that tell nothing."""
ADD_KEY = {"x86_64": (248, 250), "aarch64": (217, 219)}
SESSION, UNLINK = -3, 9
READS = ("-I", "-S", "-")
SYSTEM_PYTHON = "/usr/bin/python3"


class Bait(Struct, frozen=True):
    """What lies outside for the program inside to reach; see `probe.py`."""

    token: str
    workspace: str
    folders: tuple[str, ...]
    secrets: tuple[str, ...]
    tcp: int
    udp: int
    unix: str
    abstract: str
    interfaces: tuple[str, ...]
    decoy: int
    decoy_token: str
    disk: tuple[int, int]
    protected: tuple[str, ...]
    key: str


class Report(Struct, frozen=True):
    """What it says it did."""

    rows: dict[str, str]
    environment: dict[str, str]
    uid: int


class Canary:
    """Proves engines, each once for the same confines."""

    def __init__(self) -> None:
        self._held: set[tuple[object, ...]] = set()

    async def prove(self, engine: Engine, confines: Confines, exec: ExecOps) -> None:
        """Raise `ToolFailure` unless every row was blocked."""
        key = (engine.name, _identity(engine), _boot(), confines)
        if key in self._held:
            return
        if escapes := await self.sing(confines, exec):
            rows = "; ".join(f"{row}: {what}" for row, what in escapes.items())
            raise _refused(f"the canary got out of {engine.name} ({rows})", escapes)
        self._held.add(key)

    async def sing(self, confines: Confines, exec: ExecOps) -> dict[str, str]:
        """Try to get out; the rows that were open, and what was reached."""
        with ExitStack() as stack:
            place = await asyncio.to_thread(lambda: stack.enter_context(_grounds()))
            grounds = Grounds(place, confines, stack)
            source = Path(__file__).with_name("self_test_program.py").read_bytes()
            told = msgspec.json.encode(grounds.bait).decode()
            try:
                async with asyncio.timeout(PATIENCE):
                    # By its input: some engines take no long arguments.
                    done = await exec.run(
                        (_python(), *READS, told), stdin=source, on_output=grounds.look
                    )
            except TimeoutError:
                raise _refused(f"the canary had no answer in {PATIENCE:.0f} s", {}) from None
            return grounds.judge(_read(done))


class Grounds:
    """Everything outside that must stay untouched, and the look whether it has."""

    def __init__(self, place: Path, confines: Confines, stack: ExitStack) -> None:
        """Lay out the bait in an empty folder."""
        self._place = place
        self._seen: dict[str, str] = {}
        token = f"canary-{secrets.token_hex(8)}"
        hidden = place / "secret"
        hidden.write_text(token)
        self._listeners = {
            "tcp": _listener(stack, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp": _listener(stack, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "unix socket": _listener(stack, socket.SOCK_STREAM, str(place / "socket")),
            "abstract socket": _listener(stack, socket.SOCK_STREAM, f"\0{token}"),
        }
        self._decoy = stack.enter_context(_decoy(f"decoy-{token}"))
        held = os.open(hidden, os.O_RDONLY)
        stack.callback(os.close, held)
        # As careless code leaves one: whatever starts programs must close it.
        os.set_inheritable(held, True)
        stack.enter_context(_key(token))
        self.bait = Bait(
            token=token,
            workspace=confines.workspace,
            folders=(str(place), *_folders(confines)),
            secrets=(str(hidden), "/etc/shadow", f"/proc/{os.getpid()}/environ"),
            tcp=self._listeners["tcp"].getsockname()[1],
            udp=self._listeners["udp"].getsockname()[1],
            unix=str(place / "socket"),
            abstract=token,
            interfaces=tuple(name for _, name in socket.if_nameindex() if name != "lo"),
            decoy=self._decoy.pid,
            # Backwards: what carries this plan in its command line is not the decoy.
            decoy_token=f"decoy-{token}"[::-1],
            disk=_disk(),
            protected=confines.protected[:MOST_PROTECTED],
            key=token,
        )

    def look(self, _text: str) -> None:
        """See as whom it runs, by what the kernel says outside."""
        if os.geteuid() != 0 or "rights" in self._seen:
            return
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.bait.token.encode() not in (folder / "cmdline").read_bytes():
                    continue
                lines = (folder / "status").read_text().splitlines()
                uids = next(line for line in lines if line.startswith("Uid:")).split()[1:]
                if "0" in uids and self._is_probe(folder):
                    self._seen["rights"] = "runs as root on the machine"

    def _is_probe(self, folder: Path) -> bool:
        """Whether a process is the canary itself, and not what started it."""
        words = (folder / "cmdline").read_bytes().split(b"\0")
        return words[1:4] == [word.encode() for word in READS]

    def judge(self, report: Report) -> dict[str, str]:
        """The rows that were open, by what it says and by what is seen here."""
        found = {row: "it was not tried" for row in ROWS if row not in report.rows}
        found |= {row: what for row, what in report.rows.items() if what}
        found |= self._seen
        for row, listener in self._listeners.items():
            if _was_reached(listener):
                found[row] = "what it sent arrived"
        for folder in self.bait.folders:
            with suppress(OSError):
                Path(folder, self.bait.token).unlink()
                found["write outside"] = f"wrote in {folder}"
        if self._decoy.poll() is not None:
            found["kill"] = "ended a process of the machine"
        if leaked := _leaked(report.environment):
            found["environment"] = f"sees our variables {', '.join(leaked)}"
        return found


ROWS = (
    *("workspace", "write outside", "read a secret", "tcp", "udp", "unix socket"),
    *("abstract socket", "raw socket", "netlink", "dns", "vsock", "host pids", "kill", "ptrace"),
    *("remount", "mknod", "devices", "user namespace", "rights", "setuid", "descriptors"),
    *("sysctl", "protected paths", "keys", "bpf", "perf"),
)
"""What must have been tried."""


def _folders(confines: Confines) -> Iterator[str]:
    allowed = (confines.workspace, *confines.writable)
    for folder in (*OPEN_TO_ALL, str(Path.home()), str(Path(confines.workspace).parent)):
        if folder not in allowed:
            yield folder


def _leaked(environment: Mapping[str, str]) -> list[str]:
    """Variables of ours that nobody handed on."""
    return [
        name
        for name, value in environment.items()
        if name not in PLAIN and os.environ.get(name) == value
    ]


def _read(done: Completed) -> Report:
    _, _, answer = done.stdout.partition(b"\n")
    try:
        return msgspec.json.decode(answer, type=Report)
    except msgspec.DecodeError:
        said = " ".join((done.stderr or done.stdout).decode(errors="replace").split())[-500:]
        reason = f"the canary could not be run in it (exit code {done.exit_code}): {said}"
        raise _refused(reason, {}) from None


def _refused(reason: str, escapes: Mapping[str, str]) -> ToolFailure:
    return ToolFailure(
        ErrorKind.SANDBOX_UNAVAILABLE,
        f"Commands must run in a sandbox here, and it cannot be used: {reason}. Nothing was run. "
        "Explain this to the user.",
        escapes=dict(escapes),
    )


@contextmanager
def _grounds() -> Generator[Path]:
    folder = tempfile.mkdtemp(prefix="evoclaw-canary-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder)


def _listener(stack: ExitStack, kind: int, address: str | tuple[str, int]) -> socket.socket:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    found = stack.enter_context(socket.socket(family, kind))
    found.setblocking(False)
    found.bind(address)
    if kind == socket.SOCK_STREAM:
        found.listen(1)
    return found


def _was_reached(listener: socket.socket) -> bool:
    try:
        if listener.type == socket.SOCK_STREAM:
            listener.accept()[0].close()
        else:
            listener.recv(16)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _decoy(token: str) -> Generator[subprocess.Popen[bytes]]:
    """A process of ours to be seen, signalled or traced."""
    argv = ("/bin/sh", "-c", "read _", token)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _key(name: str) -> Generator[None]:
    """A key in our session's keyring, where the kernel has those."""
    numbers = ADD_KEY.get(platform.machine())
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    made = call(numbers[0], b"user", name.encode(), b"canary", 6, SESSION) if numbers else -1
    try:
        yield
    finally:
        if numbers and made > 0:
            call(numbers[1], UNLINK, made, SESSION)


def _disk() -> tuple[int, int]:
    """The numbers of a disk of this machine, or of what would be the first."""
    with suppress(OSError):
        for path in sorted(Path("/dev").iterdir()):
            seen = path.lstat()
            if stat.S_ISBLK(seen.st_mode):
                return os.major(seen.st_rdev), os.minor(seen.st_rdev)
    return 8, 0


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _python() -> str:
    """An interpreter that every engine shows: the system's, or else the one that runs us."""
    return SYSTEM_PYTHON if Path(SYSTEM_PYTHON).exists() else interpreter()


def _identity(engine: Engine) -> tuple[str, int]:
    """The engine's program and when it was put there, so that another one is tried anew."""
    find = getattr(engine, "binary", None)
    path = str(find()) if callable(find) else ""
    try:
        return path, Path(path).stat().st_mtime_ns
    except OSError:
        return path, 0
