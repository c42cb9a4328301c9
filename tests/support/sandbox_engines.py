"""What tests of engines share."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from evoclaw.core.ops import ExecOps
from evoclaw.core.sandboxes import Confines
from evoclaw.executors.processes import LocalProcesses
from evoclaw.executors.protected_paths import guarded
from evoclaw.sandbox.cgroups import find_groups
from evoclaw.sandbox.engines.registry import engines
from evoclaw.sandbox.sandbox import EngineCage
from evoclaw.sandbox.self_test import Canary

PYTHON = "/usr/bin/python3"


def workspace(folder: Path) -> Confines:
    """The bounds of a workspace with something protected in it."""
    (folder / ".git" / "hooks").mkdir(parents=True, exist_ok=True)
    (folder / ".bashrc").write_text("mine")
    place = os.path.realpath(folder)
    return Confines(place, protected=guarded(place))


def cage(name: str, bounds: Confines, *, warm: bool = True) -> EngineCage:
    engine = engines()[name]
    return EngineCage(engine, bounds, prover=Canary(), groups=find_groups(), warm=warm)


def inside(found: EngineCage, bounds: Confines) -> ExecOps:
    return LocalProcesses(bounds.workspace, cage=found)


def somebody() -> tuple[int, str]:
    """A plain user of this machine, if there is one, and their home; else nobody."""
    for user in pwd.getpwall():
        home = Path(user.pw_dir)
        if 1000 <= user.pw_uid < 60000 and home.is_dir() and home.stat().st_uid == user.pw_uid:
            return user.pw_uid, user.pw_dir
    return 65534, "/"


def open_up(folder: Path) -> Path:
    """Let others come to a folder, as they can come to a real workspace."""
    for one in (folder, *folder.parents):
        if str(one).startswith("/tmp/") and one.stat().st_uid == os.geteuid():
            one.chmod(0o755)
    return folder
