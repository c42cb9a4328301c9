"""`Native`: a cage from the kernel alone, without a package and without root."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from evoclaw.core.errors import ConfigError
from evoclaw.core.sandboxes import Confines
from evoclaw.sandbox.engines.native.program.kernel import REFUSED, SAYS, Kernel
from evoclaw.sandbox.engines.native.seccomp import ARCHITECTURES, How, call_filter

OLDEST = 3
"""The first version of Landlock that also holds against truncating files."""
SCOPED = 6
"""The first one that keeps signals inside."""
PATIENCE = 10.0
START = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from evoclaw.sandbox.engines.native.program.launcher import main; main()"
)
"""Imported, not run as a file: only what is imported is kept compiled."""
PACKAGE = Path(__file__).resolve().parents[3]
"""All of our own code."""
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives",
    "/etc/bash.bashrc", "/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/crypto-policies",
    "/etc/fonts", "/etc/host.conf", "/etc/inputrc", "/etc/java", "/etc/ld.so.cache",
    "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/locale.alias",
    "/etc/locale.conf", "/etc/localtime", "/etc/magic", "/etc/mime.types", "/etc/nsswitch.conf",
    "/etc/os-release", "/etc/perl", "/etc/pki/ca-trust", "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem", "/etc/profile", "/etc/protocols", "/etc/services", "/etc/shells",
    "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ssl/cert.pem", "/etc/terminfo",
    "/etc/timezone", "/nix/store",
)  # fmt: skip
"""Programs, libraries, and of the settings only those that every program may know."""
ALSO_PLAIN = ("/etc/passwd", "/etc/group", "/etc/hosts")
"""Written anew where there are namespaces."""


class Native:
    """Landlock, seccomp and limits; and namespaces, where the machine allows them.

    Attributes:
        name: What results say they were isolated by.
    """

    name = "native"

    def __init__(self, how: How | None = None, *, python: str = sys.executable) -> None:
        """Choose, or let it find out.

        Args:
            how: What to build from; by default the strongest that this machine allows.
            python: What runs the launcher: a Python 3.11 or later.
        """
        self._how = how
        self._python = python
        self._why: str | None = None
        self._abi = 0

    def missing(self) -> str:
        """Why it cannot be used here, and what to do about it; empty when it can."""
        if self._why is None:
            self._why = self._find_out()
        return self._why

    def how(self) -> How:
        """What its cages are built from; raise `ConfigError` where there can be none."""
        if why := self.missing():
            raise ConfigError(why)
        assert self._how is not None
        return self._how

    def command(self, confines: Confines, argv: Sequence[str], cwd: str) -> tuple[str, ...]:
        """The command line that runs `argv` inside; its environment is handed on as it is."""
        return self._command(self.how(), confines, argv, cwd)

    @property
    def weaker(self) -> str:
        """What its cages lack here that they have where namespaces can be made; may be empty."""
        if self.how() is How.NAMESPACES:
            return ""
        return (
            "Without namespaces: that files and processes exist can be seen, though not opened; "
            "file modes, owners and times cannot be set, no socket can be made, temporary files "
            "go where TMPDIR says, and a workspace that holds protected paths is refused."
        )

    def _find_out(self) -> str:
        if sys.platform != "linux" or os.uname().machine not in ARCHITECTURES:
            return "The native sandbox needs Linux on x86-64 or arm64. Choose another engine."
        self._abi = Kernel().landlock()
        if self._abi < OLDEST:
            return (
                f"The native sandbox needs Landlock version {OLDEST} (Linux 6.2, with `landlock` "
                f"among the kernel's `lsm=`); this kernel has {self._abi or 'none'}. "
                "Choose another engine."
            )
        reasons: list[str] = []
        for how in (self._how,) if self._how else tuple(How):
            if not (why := self._try(how)):
                self._how = how
                return ""
            reasons.append(f"{how}: {why}")
        return "The native sandbox cannot be built here (" + "; ".join(reasons) + ")."

    def _try(self, how: How) -> str:
        """Build one and run nothing in it; why that fails."""
        if how is How.RULES and self._abi < SCOPED:
            return f"needs Landlock version {SCOPED} (Linux 6.12) or user namespaces"
        with tempfile.TemporaryDirectory(prefix="evoclaw-") as folder:
            place = os.path.realpath(folder)
            # Root's folders need a mapped mount; where there is none, somebody else's will do.
            if os.geteuid() == 0 and how is How.RULES:
                os.chown(place, 65534, 65534)
            argv = self._command(how, Confines(place), ("/bin/true",), place)
            try:
                done = subprocess.run(
                    argv, capture_output=True, timeout=PATIENCE, check=False, cwd="/", env={}
                )
            except (OSError, subprocess.TimeoutExpired) as problem:
                return f"the launcher does not run: {problem}"
        if done.returncode == 0:
            return ""
        return refusal(done.returncode, done.stderr) or f"status {done.returncode}"

    def _command(
        self, how: How, confines: Confines, argv: Sequence[str], cwd: str
    ) -> tuple[str, ...]:
        _check(confines, argv, cwd)
        writable = _writable(confines)
        system = [*SYSTEM, *_interpreter(), *(ALSO_PLAIN if how is How.RULES else ())]
        proxy = (confines.proxy,) if confines.proxy else ()
        machine = os.uname().machine
        words = {
            "how": (how.value,),
            "abi": (self._abi,),
            "cwd": (cwd,),
            "write": writable,
            "read": confines.readable,
            "system": system,
            "protect": [
                *(one for one in confines.protected if _below(one, writable)),
                *_ours(writable),
            ],
            "proxy": proxy,
            "memory": (confines.memory,),
            "processes": (confines.processes,),
            "file_size": (confines.file_size,),
            "open_files": (confines.open_files,),
            "filter": (call_filter(how, network=bool(proxy), machine=machine).hex(),),
        }
        said = (f"{key}={value}" for key, values in words.items() for value in values)
        return (self._python, "-I", "-S", "-c", START, str(PACKAGE.parent), *said, "--", *argv)


def refusal(code: int, stderr: bytes) -> str:
    """Why a cage could not be built, if that is what a launcher's end says; else empty."""
    if code != REFUSED:
        return ""
    for line in stderr.decode(errors="replace").splitlines():
        if line.startswith(SAYS):
            return line.removeprefix(SAYS)
    return ""


def _writable(confines: Confines) -> tuple[str, ...]:
    return tuple(dict.fromkeys((confines.workspace, *confines.writable)))


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(folder.rstrip("/") + "/") for folder in folders)


@cache
def _interpreter() -> tuple[str, ...]:
    """Where this Python lives, when not with the system's programs: the relay needs one inside."""
    places = dict.fromkeys(os.path.realpath(one) for one in (sys.prefix, sys.base_prefix))
    return tuple(one for one in places if one != "/" and not _below(one + "/", SYSTEM))


def _ours(writable: Sequence[str]) -> tuple[str, ...]:
    """What runs outside of the cage next time must not be changed from inside."""
    return tuple(f"{one}/" for one in (str(PACKAGE), *_interpreter()) if _below(one, writable))


def _check(confines: Confines, argv: Sequence[str], cwd: str) -> None:
    paths = (*_writable(confines), *confines.readable, *confines.protected, cwd)
    for path in (*paths, confines.proxy or "/"):
        if not path.startswith("/") or "\0" in path or f"{path}/".find("/../") >= 0:
            raise ConfigError(f"A cage's paths are absolute and real; {path!r} is not.")
    if not argv or any("\0" in one for one in argv):
        raise ConfigError("A cage needs a command line without NUL characters.")
    if "/" in (*_writable(confines), *confines.readable):
        raise ConfigError("A cage cannot be given the whole file system: name folders.")
    for one in (str(PACKAGE), *_interpreter()):
        if any(_below(f"{folder}/", (one,)) for folder in _writable(confines)):
            raise ConfigError(
                f"A cage cannot be allowed to change '{one}' or what is in it: this is what runs "
                "outside of it. Choose another workspace."
            )
