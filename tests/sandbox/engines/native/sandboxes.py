"""Native sandboxes for the tests: as root and as a plain user, with namespaces and without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.sandbox.engines.native.engine import SIGNAL_SCOPE_LANDLOCK_ABI, NativeEngine
from evoclaw.sandbox.engines.native.program.kernel import Kernel
from evoclaw.sandbox.engines.native.seccomp import NativeMode

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
KINDS = [(who, how) for who in ("root", "user") for how in NativeMode]
PATIENCE = 30.0


@dataclass
class NativeSandbox:
    """One kind of sandbox and a workspace that it may change."""

    engine: NativeEngine
    place: Path
    """Beside the workspace; everybody may read and change what is here, but for the sandbox."""
    workspace: Path
    before: tuple[str, ...]
    uid: int
    """Who asks for the sandbox."""
    python: str
    policy: dict[str, Any] = field(default_factory=dict[str, Any])

    def command(self, *argv: str, **policy: Any) -> tuple[str, ...]:
        within = SandboxPolicy(str(self.workspace), **(self.policy | policy))
        return (*self.before, *self.engine.command(within, argv, str(self.workspace)))

    def run(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        **policy: Any,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*argv, **policy),
            cwd="/",
            env={"PATH": "/usr/bin:/bin", **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            pass_fds=tuple(pass_fds),
        )

    def shell(self, script: str, **policy: Any) -> subprocess.CompletedProcess[str]:
        return self.run("/bin/sh", "-c", script, **policy)

    def give(self, *paths: Path) -> None:
        """Let whoever asks for the sandbox own these."""
        for path in paths:
            if os.geteuid() == 0:
                os.lchown(path, self.uid, self.uid)


def make_sandbox(who: str, how: NativeMode, tmp_path: Path) -> NativeSandbox:
    """A sandbox, or a skip that says what is missing."""
    root = os.geteuid() == 0
    if who == "root" and not root:
        pytest.skip("needs root")
    before, python, uid = (), sys.executable, os.geteuid()
    if who == "user" and root:
        before, uid = AS_NOBODY, NOBODY
    elif root and how is NativeMode.RULES:
        # Without a mapped mount root can only become the folder's owner.
        uid = NOBODY
    if uid != os.geteuid():
        python = python_for_anyone()
    engine = NativeEngine(how, python=python)
    if why := engine.missing():
        (pytest.fail if _possible(how) else pytest.skip)(why)
    if uid != os.geteuid():
        _open_to_others(tmp_path)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    sandbox = NativeSandbox(engine, tmp_path, workspace, before, uid, python)
    sandbox.give(workspace)
    tmp_path.chmod(0o777)
    return sandbox


def python_for_anyone() -> str:
    """A Python that somebody else than root can run too."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv (install util-linux)")
    for python in (sys.executable, "/usr/bin/python3"):
        # By way of a shell: setpriv itself can still start what it may not read.
        code = "import sys; sys.exit(sys.version_info < (3, 11))"
        argv = (*AS_NOBODY, "/bin/sh", "-c", 'exec "$0" -I -S -c "$1"', python, code)
        if subprocess.run(argv, capture_output=True, check=False).returncode == 0:
            return python
    pytest.skip("needs a Python 3.11 that a plain user can run (install python3)")


def _open_to_others(folder: Path) -> None:
    """Let others pass through the folders that pytest made for itself, and through no others."""
    for one in (folder, *folder.parents):
        mode = one.stat().st_mode
        if mode & 0o005 == 0o005:
            continue
        if one not in (folder, folder.parent) and not one.name.startswith("pytest-"):
            pytest.skip(f"needs a --basetemp that a plain user can reach: '{one}' is closed")
        one.chmod(mode | 0o055)


def _possible(how: NativeMode) -> bool:
    """Whether this machine allows what such a sandbox is made of: then it must work."""
    if Kernel().landlock() < SIGNAL_SCOPE_LANDLOCK_ABI:
        return False
    argv = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--net", "--fork", "true")
    if how is NativeMode.RULES or shutil.which("unshare") is None:
        return how is NativeMode.RULES
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0
