"""The self-test: an engine is used only after a program inside it failed to escape."""

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
from evoclaw.core.ops import CompletedProcess, ExecOps
from evoclaw.core.sandboxes import SandboxEngine, SandboxPolicy
from evoclaw.sandbox.engines.host_view import is_below, own_interpreter
from evoclaw.sandbox.workers.pool import sandbox_unavailable

SELF_TEST_TIMEOUT_S = 30.0
"""For the whole self-test: engines that build a container take a while on a small device."""
MAX_TESTED_PROTECTED_PATHS = 8
"""Protected paths that are tested: all are mounted in the same way."""
TESTED_FOLDERS = ("/", "/etc", "/usr", "/usr/bin", "/var", "/root", "/home", "/opt", "/srv", "/tmp")
HARMLESS_VARIABLES = frozenset(
    {"PATH", "HOME", "LANG", "TERM", "PWD", "SHLVL", "_", "TMPDIR", "LC_CTYPE", "SHELL", "USER"}
    | {"LOGNAME", "HOSTNAME"}
)
"""Variables that every command gets, and that reveal nothing about the host."""
KEY_SYSCALLS = {"x86_64": (248, 250), "aarch64": (217, 219)}
SESSION_KEYRING, KEYCTL_UNLINK = -3, 9
IPC_CREAT, IPC_EXCL, IPC_RMID = 0o1000, 0o2000, 0
SHARED_MEMORY_BYTES = 4096
READ_FROM_STDIN = ("-I", "-S", "-")
SYSTEM_PYTHON = "/usr/bin/python3"


class Decoys(Struct, frozen=True):
    """The decoys outside that `self_test_program.py` tries to reach from inside."""

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
    shared_memory: int


class SelfTestReport(Struct, frozen=True):
    """What the self-test reports of its attempts."""

    rows: dict[str, str]
    environment: dict[str, str]
    uid: int


class SandboxSelfTest:
    """Tests engines, each once for the same policy."""

    def __init__(self) -> None:
        self._passed: set[tuple[object, ...]] = set()

    async def check(self, engine: SandboxEngine, policy: SandboxPolicy, exec: ExecOps) -> None:
        """Raise `ToolFailure` unless every escape attempt was blocked."""
        if shared := _shared_folder(policy):
            raise _refused(shared, {})
        key = (engine.name, _identity(engine), _boot_id(), policy)
        if key in self._passed:
            return
        if escapes := await self.find_escapes(policy, exec):
            rows = "; ".join(f"{row}: {what}" for row, what in escapes.items())
            reason = f"{engine.name} does not isolate commands here; the self-test escaped: {rows}"
            raise _refused(reason, escapes)

        self._passed.add(key)

    async def find_escapes(self, policy: SandboxPolicy, exec: ExecOps) -> dict[str, str]:
        """Try to escape; the attempts that succeeded, and what they reached."""
        with ExitStack() as stack:
            folder = await asyncio.to_thread(lambda: stack.enter_context(_decoy_folder()))
            detector = EscapeDetector(folder, policy, stack)
            source = Path(__file__).with_name("self_test_program.py").read_bytes()
            plan = msgspec.json.encode(detector.decoys).decode()
            try:
                async with asyncio.timeout(SELF_TEST_TIMEOUT_S):
                    # On stdin: some engines take no long arguments.
                    done = await exec.run(
                        (_python(), *READ_FROM_STDIN, plan), stdin=source, on_output=detector.look
                    )
            except TimeoutError:
                raise _refused(
                    f"the self-test timed out after {SELF_TEST_TIMEOUT_S:.0f} s", {}
                ) from None
            return detector.judge(_read_report(done))


class EscapeDetector:
    """Places decoys outside the sandbox, and detects whether the self-test reached them."""

    def __init__(self, place: Path, policy: SandboxPolicy, stack: ExitStack) -> None:
        """Place the decoys in an empty folder."""
        self._place = place
        self._seen: dict[str, str] = {}
        token = f"self-test-{secrets.token_hex(8)}"
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
        # An inheritable descriptor, as a leak: the process that starts programs must close it.
        os.set_inheritable(held, True)
        stack.enter_context(_key(token))
        self.decoys = Decoys(
            token=token,
            workspace=policy.workspace,
            folders=(str(place), *_folders(policy)),
            secrets=(str(hidden), "/etc/shadow", f"/proc/{os.getpid()}/environ"),
            tcp=self._listeners["tcp"].getsockname()[1],
            udp=self._listeners["udp"].getsockname()[1],
            unix=str(place / "socket"),
            abstract=token,
            interfaces=tuple(name for _, name in socket.if_nameindex() if name != "lo"),
            decoy=self._decoy.pid,
            # Reversed: a process with this plan in its command line is not the decoy.
            decoy_token=f"decoy-{token}"[::-1],
            disk=_disk_numbers(),
            protected=policy.protected[:MAX_TESTED_PROTECTED_PATHS],
            key=token,
            shared_memory=stack.enter_context(_shared_memory()),
        )

    def look(self, _text: str) -> None:
        """Check the user that it runs as, by what the kernel shows outside."""
        if os.geteuid() != 0 or "rights" in self._seen:
            return
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.decoys.token.encode() not in (folder / "cmdline").read_bytes():
                    continue
                lines = (folder / "status").read_text().splitlines()
                uids = next(line for line in lines if line.startswith("Uid:")).split()[1:]
                if "0" in uids and self._is_probe(folder):
                    self._seen["rights"] = "runs as root on the machine"

    def _is_probe(self, folder: Path) -> bool:
        """Whether a process is the self-test itself, and not what started it."""
        words = (folder / "cmdline").read_bytes().split(b"\0")
        return words[1:4] == [word.encode() for word in READ_FROM_STDIN]

    def judge(self, report: SelfTestReport) -> dict[str, str]:
        """The attempts that succeeded, by its report and by the evidence outside."""
        found = {row: "not tried" for row in SELF_TEST_ROWS if row not in report.rows}
        found |= {row: what for row, what in report.rows.items() if what}
        found |= self._seen
        for row, listener in self._listeners.items():
            if _was_reached(listener):
                found[row] = "its message arrived"
        for folder in self.decoys.folders:
            with suppress(OSError):
                Path(folder, self.decoys.token).unlink()
                found["write outside"] = f"wrote in {folder}"
        if self._decoy.poll() is not None:
            found["kill"] = "killed a process of the machine"
        if leaked := _leaked(report.environment):
            found["environment"] = f"sees our variables {', '.join(leaked)}"
        return found


SELF_TEST_ROWS = (
    *("workspace", "write outside", "read a secret", "tcp", "udp", "unix socket"),
    *("abstract socket", "raw socket", "netlink", "dns", "vsock", "host pids", "kill", "ptrace"),
    *("remount", "mknod", "devices", "user namespace", "rights", "setuid", "descriptors"),
    *("sysctl", "protected paths", "keys", "bpf", "perf", "shared memory", "io_uring"),
)
"""The escape attempts that a report must have."""


def _folders(policy: SandboxPolicy) -> Iterator[str]:
    allowed = (policy.workspace, *policy.writable)
    for folder in (*TESTED_FOLDERS, str(Path.home()), str(Path(policy.workspace).parent)):
        if folder not in allowed:
            yield folder


def _leaked(environment: Mapping[str, str]) -> list[str]:
    """Variables of this process's environment that leaked into the sandbox."""
    return [
        name
        for name, value in environment.items()
        if name not in HARMLESS_VARIABLES and os.environ.get(name) == value
    ]


def _read_report(done: CompletedProcess) -> SelfTestReport:
    _, _, answer = done.stdout.partition(b"\n")
    try:
        return msgspec.json.decode(answer, type=SelfTestReport)
    except msgspec.DecodeError:
        output = " ".join((done.stderr or done.stdout).decode(errors="replace").split())[-500:]
        reason = f"the self-test could not run in it (exit code {done.exit_code}): {output}"
        raise _refused(reason, {}) from None


def _refused(reason: str, escapes: Mapping[str, str]) -> ToolFailure:
    return sandbox_unavailable(reason, escapes=dict(escapes))


def _shared_folder(policy: SandboxPolicy) -> str:
    """Which folder must not be given to commands, and what to do; empty if there is none.

    The self-test would report an escape: it finds its decoys, or your home folder, inside.
    """
    home, temporary = os.path.realpath(Path.home()), os.path.realpath(tempfile.gettempdir())
    for folder in (policy.workspace, *policy.writable):
        found = ""
        if home != folder and is_below(home, folder) and Path(home).is_dir():
            found = f"your home folder '{home}'"
        elif is_below(temporary, folder):
            found = f"the temporary folder '{temporary}'"
        if found:
            return (
                f"commands could change {found}, because '{folder}' contains it. Start "
                "EvoClaw in a project folder, and do not list such a folder in "
                "`writable` of [sandbox]"
            )
    return ""


@contextmanager
def _decoy_folder() -> Generator[Path]:
    folder = tempfile.mkdtemp(prefix="evoclaw-self-test-")
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
    """A process outside that the self-test tries to see, signal or trace."""
    argv = ("/bin/sh", "-c", "read _", token)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _key(name: str) -> Generator[None]:
    """A key in this process's session keyring, where the kernel has keyrings."""
    numbers = KEY_SYSCALLS.get(platform.machine())
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    made = call(numbers[0], b"user", name.encode(), b"decoy", 5, SESSION_KEYRING) if numbers else -1
    try:
        yield
    finally:
        if numbers and made > 0:
            call(numbers[1], KEYCTL_UNLINK, made, SESSION_KEYRING)


@contextmanager
def _shared_memory() -> Generator[int]:
    """The key of System V shared memory that every user may open, where the kernel has it."""
    libc = ctypes.CDLL(None)
    key = secrets.randbelow(0x7FFFFFFF) + 1
    made = libc.shmget(key, SHARED_MEMORY_BYTES, IPC_CREAT | IPC_EXCL | 0o666)
    try:
        yield key
    finally:
        if made >= 0:
            libc.shmctl(made, IPC_RMID, None)


def _disk_numbers() -> tuple[int, int]:
    """The device numbers of a disk of this machine, or of the usual first one."""
    with suppress(OSError):
        for path in sorted(Path("/dev").iterdir()):
            seen = path.lstat()
            if stat.S_ISBLK(seen.st_mode):
                return os.major(seen.st_rdev), os.minor(seen.st_rdev)
    return 8, 0


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _python() -> str:
    """An interpreter that every engine shows: the system's, or the one of this process."""
    return SYSTEM_PYTHON if Path(SYSTEM_PYTHON).exists() else own_interpreter()


def _identity(engine: SandboxEngine) -> tuple[str, int]:
    """The engine's program and when it was installed, so that an update is tested again."""
    find = getattr(engine, "binary", None)
    path = str(find()) if callable(find) else ""
    try:
        return path, Path(path).stat().st_mtime_ns
    except OSError:
        return path, 0
