"""A real PostgreSQL for the tests: on a port of its own, thrown away at the end."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

from tests.support.ports import free_port

USER = "tester"
START = 60.0
"""Seconds for a server to be there."""
TRUSTING = ("--auth=trust", "-N", "-E", "UTF8", "--locale=C.UTF-8")
TEMPLATES = Path(__file__).parents[2] / ".cache" / "postgres"
"""Files of new servers, by what they were made with."""
_DEATH = 1  # PR_SET_PDEATHSIG


def program(name: str) -> str:
    """Where a program of PostgreSQL is, if it is; distributions keep them off the path."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(places[-1]) if places else shutil.which(name) or ""


def _copy(source: Path, target: Path) -> None:
    """Copy a folder with the owners and modes of everything in it."""
    subprocess.run(["cp", "-a", source, target], check=True, timeout=60)


def why_no_postgres() -> str:
    """Why PostgreSQL cannot be tested here; empty if it can."""
    if find_spec("psycopg") is None:
        return "psycopg is not installed: pip install 'psycopg[binary]'"
    if not (program("initdb") and program("postgres")):
        return "there is no PostgreSQL server here: apt install postgresql"
    return ""


@dataclass
class Postgres:
    """A server that can be stopped, killed and started again on the same files.

    They are in no folder of pytest's: whoever starts pytest shuts those to all but its user.
    """

    folder: Path = field(default_factory=lambda: Path(mkdtemp(prefix="evoclaw-pg-"), "pg"))
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    settings: tuple[str, ...] = ("fsync=off",)
    """Settings of the server, as `NAME=VALUE`."""

    @property
    def url(self) -> str:
        """Its address, for a user who needs no password."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        user = _plain_user()
        if not self.folder.exists():
            self._make(user)
        command = [program("postgres"), "-D", self.folder, "-k", self.folder, "-h", "127.0.0.1"]
        command += ["-p", str(self.port)]
        for setting in self.settings:
            command += ["-c", setting]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                user=user,
                cwd="/",
                preexec_fn=_die_with_parent,
            )
        end = time.monotonic() + START
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(self._log.read_text()[-2000:])
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: at once, but in order, or as after a crash with `SIGQUIT`."""
        if self.process is not None:
            with self.process:
                self.process.send_signal(how)
                self.process.wait(START)
            self.process = None

    def close(self) -> None:
        """End it, and throw its files away."""
        self.stop()
        shutil.rmtree(self.folder.parent, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self.folder.with_suffix(".log")

    def _make(self, user: str | None) -> None:
        """Copy the files of a new server: to make them takes seconds of processor time."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        if user is not None:
            self.folder.parent.chmod(0o711)
        TEMPLATES.mkdir(parents=True, exist_ok=True)
        made_with = "\0".join((program("initdb"), user or "", USER, *TRUSTING))
        template = TEMPLATES / sha256(made_with.encode()).hexdigest()[:16]
        with (TEMPLATES / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not template.exists():
                self._initdb(user)
                half = template.with_suffix(".new")
                shutil.rmtree(half, ignore_errors=True)
                _copy(self.folder, half)
                half.rename(template)
                return
        _copy(template, self.folder)

    def _initdb(self, user: str | None) -> None:
        self.folder.mkdir()
        if user is not None:
            shutil.chown(self.folder, user)
        command = [program("initdb"), "-D", self.folder, "-U", USER, *TRUSTING]
        done = subprocess.run(command, timeout=120, capture_output=True, user=user, cwd="/")
        if done.returncode:
            raise RuntimeError(done.stderr.decode(errors="replace")[-2000:])

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


def _plain_user() -> str | None:
    """Whom the server runs as: it refuses to be root's."""
    if os.geteuid() != 0:
        return None
    names = {one.pw_name for one in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _die_with_parent() -> None:
    # Also when the tests are killed, no server is left.
    ctypes.CDLL(None).prctl(_DEATH, signal.SIGQUIT)
