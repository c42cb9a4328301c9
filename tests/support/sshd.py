"""A real OpenSSH server on this machine, for the tests alone."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evoclaw.executors.ssh.connection import SshConnection
from tests.support.ports import free_port

SFTP_SERVERS = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
    "/usr/libexec/sftp-server",
)
PATH = f"{Path(sys.executable).resolve().parent}:/usr/local/bin:/usr/bin:/bin"
CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/user.pub
AuthenticationMethods publickey
StrictModes no
UsePAM no
PermitRootLogin yes
PrintMotd no
PrintLastLog no
LogLevel INFO
MaxStartups 100
AcceptEnv *
SetEnv SHLVL=1 PATH={path}
Subsystem sftp {sftp}
{extra}
"""


class Sshd:
    """One running server.

    Its shells take themselves for inner ones, so that they do not read the account's `.bashrc`:
    that may take longer than a test, and turn `python3` into a script that looks for one.
    """

    def __init__(self, folder: Path, program: str, sftp: str, extra: str) -> None:
        self.folder, self._program, self._extra = folder, program, extra
        self.user = getpass.getuser()
        self.key, self.known_hosts = folder / "user", folder / "known_hosts"
        self._sftp = sftp
        for name in ("host", "user", "other"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True, timeout=20)
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self._drained = threading.Thread()

    def start(self) -> None:
        """Listen, on the port of before if there was one."""
        for _ in range(5):
            port = self.port or free_port()
            config = self.folder / "config"
            config.write_text(
                CONFIG.format(
                    port=port, folder=self.folder, sftp=self._sftp, extra=self._extra, path=PATH
                )
            )
            process = subprocess.Popen(
                [self._program, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                cwd="/",
            )
            assert process.stderr is not None
            for line in process.stderr:
                if "Server listening" in line:
                    self._process, self.port = process, port
                    # A full pipe would stop the server.
                    self._drained = threading.Thread(target=process.stderr.read, daemon=True)
                    self._drained.start()
                    self.trust("host")
                    return
            process.stderr.close()
            process.wait(timeout=10)
        raise AssertionError("sshd does not start")

    def trust(self, name: str | None) -> None:
        """Write the file of known hosts: with one of our keys, or empty."""
        text = ""
        if name is not None:
            public = (self.folder / f"{name}.pub").read_text()
            text = f"[127.0.0.1]:{self.port} {public}"
        self.known_hosts.write_text(text)

    def fingerprint(self) -> str:
        """Its host key, as ssh-keygen prints it."""
        command = ["ssh-keygen", "-lf", str(self.folder / "host.pub")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1]

    def stop(self) -> None:
        """End the server and every connection it has."""
        if self._process is not None:
            self.cut()
            self._process.kill()
            self._process.wait(timeout=10)
            self._drained.join(timeout=10)
            if self._process.stderr is not None:
                self._process.stderr.close()
            self._process = None

    def cut(self) -> int:
        """Kill the processes that serve connections, as a broken line would; how many."""
        assert self._process is not None
        served = _children(self._process.pid)
        for pid in [*served, *(below for one in served for below in _children(one))]:
            if b"sshd" in _command(pid):
                os.kill(pid, 9)
        return len(served)

    def connection(self, **options: object) -> SshConnection:
        """A connection to it, as the user it knows."""
        chosen: dict[str, object] = {
            "port": self.port,
            "user": self.user,
            "keys": [self.key],
            "known_hosts": self.known_hosts,
            "patience": 10.0,
        }
        chosen.update(options)
        return SshConnection("127.0.0.1", **chosen)  # pyright: ignore[reportArgumentType]


@contextmanager
def sshd(folder: Path, extra: str = "") -> Generator[Sshd]:
    """A server for a while; skips the test where there is no OpenSSH."""
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    sftp = next((path for path in SFTP_SERVERS if Path(path).exists()), None)
    if program is None or sftp is None or shutil.which("ssh-keygen") is None:
        pytest.skip("there is no OpenSSH server here: install openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    server = Sshd(folder, program, sftp, extra)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
