"""What tests of engines share."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from evoclaw.core.ops import ExecOps
from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.cgroups import find_cgroups
from evoclaw.sandbox.engines.registry import package_engines
from evoclaw.sandbox.sandboxes import EngineSandbox
from evoclaw.sandbox.self_test import SandboxSelfTest
from tests.support.sandboxes import protected_paths

PYTHON = "/usr/bin/python3"


def workspace(folder: Path) -> SandboxPolicy:
    """The bounds of a workspace with something protected in it."""
    (folder / ".git" / "hooks").mkdir(parents=True, exist_ok=True)
    (folder / ".bashrc").write_text("mine")
    place = os.path.realpath(folder)
    return SandboxPolicy(place, protected=protected_paths(place))


def sandbox(name: str, bounds: SandboxPolicy, *, warm: bool = True) -> EngineSandbox:
    engine = package_engines()[name]
    return EngineSandbox(
        engine, bounds, self_test=SandboxSelfTest(), groups=find_cgroups(), warm=warm
    )


def inside(found: EngineSandbox, bounds: SandboxPolicy) -> ExecOps:
    return LocalProcesses(bounds.workspace, sandbox=found)


def unprivileged_user() -> tuple[int, str]:
    """A plain user of this machine, if there is one, and their home; else nobody."""
    for user in pwd.getpwall():
        home = Path(user.pw_dir)
        if 1000 <= user.pw_uid < 60000 and home.is_dir() and home.stat().st_uid == user.pw_uid:
            return user.pw_uid, user.pw_dir
    return 65534, "/"


def make_accessible(folder: Path) -> Path:
    """Let others come to a folder, as they can come to a real workspace."""
    for one in (folder, *folder.parents):
        if str(one).startswith("/tmp/") and one.stat().st_uid == os.geteuid():
            one.chmod(0o755)
    return folder
