"""`NativeEngine`: a sandbox by the kernel alone, without a package and without root."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from evoclaw.core.errors import ConfigError
from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.sandbox.engines.native.program.kernel import EXIT_REFUSED, REFUSAL_PREFIX, Kernel
from evoclaw.sandbox.engines.native.seccomp import ARCHITECTURES, NativeMode, call_filter

MIN_LANDLOCK_ABI = 3
"""The first version of Landlock that can forbid truncating files."""
SIGNAL_SCOPE_LANDLOCK_ABI = 6
"""The first version that can keep signals inside."""
PROBE_TIMEOUT_S = 10.0
LAUNCHER_CODE = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from evoclaw.sandbox.engines.native.program.launcher import main; main()"
)
"""Imported, not run as a file: Python caches the bytecode of imported modules only."""
PACKAGE_FOLDER = Path(__file__).resolve().parents[3]
"""The folder of EvoClaw's code."""
SYSTEM_PATHS = (
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
"""Programs, libraries, and the settings that any program may read."""
PLAIN_ETC_FILES = ("/etc/passwd", "/etc/group", "/etc/hosts")
"""Files that the launcher writes where namespaces are available."""


class NativeEngine:
    """Landlock, seccomp and limits; and namespaces, where the machine allows them.

    Attributes:
        name: The engine's name in results.
    """

    name = "native"

    def __init__(self, how: NativeMode | None = None, *, python: str = sys.executable) -> None:
        """Set the kind of sandbox, or detect it.

        Args:
            how: The kernel features to use [default: the strongest that this machine allows].
            python: The interpreter of the launcher: Python 3.11 or later.
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

    def how(self) -> NativeMode:
        """The kernel features of its sandboxes; raise `ConfigError` if none can be built."""
        if why := self.missing():
            raise ConfigError(why)
        assert self._how is not None
        return self._how

    def command(self, policy: SandboxPolicy, argv: Sequence[str], cwd: str) -> tuple[str, ...]:
        """The command line that runs `argv` inside; its environment is passed on unchanged."""
        return self._command(self.how(), policy, argv, cwd)

    @property
    def weaker(self) -> str:
        """What its sandboxes lack without namespaces; empty where namespaces are available."""
        if self.how() is NativeMode.NAMESPACES:
            return ""
        return (
            "Without namespaces, commands can see that files and processes exist, but "
            "not open them; "
            "file modes, owners and times cannot be set, no socket can be made, temporary files "
            "go where TMPDIR says, and a workspace that holds protected paths is refused."
        )

    def _find_out(self) -> str:
        if sys.platform != "linux" or os.uname().machine not in ARCHITECTURES:
            return "The native sandbox needs Linux on x86-64 or arm64. Choose another engine."
        self._abi = Kernel().landlock()
        if self._abi < MIN_LANDLOCK_ABI:
            return (
                f"The native sandbox needs Landlock version {MIN_LANDLOCK_ABI} (Linux 6.2, with "
                f"`landlock` among the kernel's `lsm=`); this kernel has {self._abi or 'none'}. "
                "Choose another engine."
            )
        reasons: list[str] = []
        for how in (self._how,) if self._how else tuple(NativeMode):
            if not (why := self._try(how)):
                self._how = how
                return ""
            reasons.append(f"{how}: {why}")
        return "The native sandbox cannot be built here (" + "; ".join(reasons) + ")."

    def _try(self, how: NativeMode) -> str:
        """Build a sandbox and run `true` in it; the reason if that fails."""
        if how is NativeMode.RULES and self._abi < SIGNAL_SCOPE_LANDLOCK_ABI:
            version = SIGNAL_SCOPE_LANDLOCK_ABI
            return f"needs Landlock version {version} (Linux 6.12) or user namespaces"
        with tempfile.TemporaryDirectory(prefix="evoclaw-") as folder:
            place = os.path.realpath(folder)
            # Root's folders need an id-mapped mount; without one, use another owner's folder.
            if os.geteuid() == 0 and how is NativeMode.RULES:
                os.chown(place, 65534, 65534)
            argv = self._command(how, SandboxPolicy(place), ("/bin/true",), place)
            try:
                done = subprocess.run(
                    argv, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False, cwd="/", env={}
                )
            except (OSError, subprocess.TimeoutExpired) as problem:
                return f"the launcher does not run: {problem}"
        if done.returncode == 0:
            return ""
        return refusal(done.returncode, done.stderr) or f"status {done.returncode}"

    def _command(
        self, how: NativeMode, policy: SandboxPolicy, argv: Sequence[str], cwd: str
    ) -> tuple[str, ...]:
        _check(policy, argv, cwd)
        writable = _writable(policy)
        system = [
            *SYSTEM_PATHS,
            *_interpreter(),
            *(PLAIN_ETC_FILES if how is NativeMode.RULES else ()),
        ]
        proxy = (policy.proxy,) if policy.proxy else ()
        machine = os.uname().machine
        words = {
            "how": (how.value,),
            "abi": (self._abi,),
            "cwd": (cwd,),
            "write": writable,
            "read": policy.readable,
            "device": policy.devices,
            "system": system,
            "protect": [
                *(path for path in policy.protected if _below(path, writable)),
                *_ours(writable),
            ],
            "proxy": proxy,
            "memory": (policy.memory,),
            "processes": (policy.processes,),
            "file_size": (policy.file_size,),
            "open_files": (policy.open_files,),
            "filter": (call_filter(how, network=bool(proxy), machine=machine).hex(),),
        }
        settings = (f"{key}={value}" for key, values in words.items() for value in values)
        return (
            self._python,
            "-I",
            "-S",
            "-c",
            LAUNCHER_CODE,
            str(PACKAGE_FOLDER.parent),
            *settings,
            "--",
            *argv,
        )


def refusal(code: int, stderr: bytes) -> str:
    """Why a sandbox could not be built, from the launcher's exit; empty if it was built."""
    if code != EXIT_REFUSED:
        return ""
    for line in stderr.decode(errors="replace").splitlines():
        if line.startswith(REFUSAL_PREFIX):
            return line.removeprefix(REFUSAL_PREFIX)
    return ""


def _writable(policy: SandboxPolicy) -> tuple[str, ...]:
    return tuple(dict.fromkeys((policy.workspace, *policy.writable)))


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(folder.rstrip("/") + "/") for folder in folders)


@cache
def _interpreter() -> tuple[str, ...]:
    """The folders of this Python, unless it is the system's: the relay needs it inside."""
    places = dict.fromkeys(os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix))
    return tuple(path for path in places if path != "/" and not _below(path + "/", SYSTEM_PATHS))


def _ours(writable: Sequence[str]) -> tuple[str, ...]:
    """EvoClaw's installation: it runs outside, so no sandbox may change it."""
    return tuple(
        f"{path}/" for path in (str(PACKAGE_FOLDER), *_interpreter()) if _below(path, writable)
    )


def _check(policy: SandboxPolicy, argv: Sequence[str], cwd: str) -> None:
    paths = (*_writable(policy), *policy.readable, *policy.devices, *policy.protected, cwd)
    for path in (*paths, policy.proxy or "/"):
        if not path.startswith("/") or "\0" in path or f"{path}/".find("/../") >= 0:
            raise ConfigError(f"Sandbox paths must be absolute and free of links; {path!r} is not.")
    if not argv or any("\0" in argument for argument in argv):
        raise ConfigError("A sandbox needs a command line without NUL characters.")
    if "/" in (*_writable(policy), *policy.readable):
        raise ConfigError("A sandbox cannot have the whole file system: name folders.")
    for own in (str(PACKAGE_FOLDER), *_interpreter()):
        if any(_below(f"{folder}/", (own,)) for folder in _writable(policy)):
            raise ConfigError(
                f"A sandbox may not change '{own}' or what is in it: EvoClaw runs from there. "
                "Choose another workspace."
            )
