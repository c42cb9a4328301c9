"""Where an engine finds the folders of a cage, and how its command line is begun."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from evoclaw.core.sandboxes import Confines
from evoclaw.sandbox.engines.host_view import accounts, below, readable, tenant_uid

STAGE = "/tmp"


class Tree(Struct, frozen=True):
    """One folder that is shown in the staging folder."""

    path: str
    place: str
    writable: bool


class Plan(Struct, frozen=True):
    """What is prepared before the engine starts; see `entry.py`."""

    uid: int | None = None
    """The service user; none: we are no root, and run as ourselves."""
    gid: int | None = None
    keep_root: bool = False
    """The engine itself needs root, and drops to the service user on its own."""
    stage: str = STAGE
    trees: tuple[Tree, ...] = ()
    staged: bool = True
    """Whether the trees are shown in the staging folder."""
    files: dict[str, str] = {}
    """Texts, by the descriptor at which the engine reads them."""
    over: dict[str, str] = {}
    """Texts that the engine sees in place of files."""

    def source(self, path: str) -> str:
        """Where the engine finds what the cage will have at this path."""
        for tree in sorted(self.trees, key=lambda one: -len(one.path)):
            if below(path, tree.path):
                return tree.place + path.removeprefix(tree.path)
        return path

    @property
    def ids(self) -> tuple[int, int]:
        """As whom the command runs."""
        if self.uid is None or self.gid is None:
            return os.geteuid(), os.getegid()
        return self.uid, self.gid

    def command(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """The command line that prepares everything and becomes `argv`."""
        program = str(Path(__file__).with_name("launcher_program.py"))
        told = msgspec.json.encode(self).decode()
        return (sys.executable, "-I", "-S", program, told, *argv)


def plan(confines: Confines, *, keep_root: bool = False, in_place: bool = False) -> Plan:
    """Who a cage's commands run as, and where its folders are to be found.

    Args:
        confines: What the cage shows.
        keep_root: The engine itself needs root, and drops to the service user on its own.
        in_place: The engine shows folders where they are, and asks who its user is: each is
            mounted over itself rather than in the staging folder.
    """
    if os.geteuid() != 0:
        return Plan()
    uid = tenant_uid(confines.tenant)
    changed = (confines.workspace, *confines.writable)
    paths = [(path, True) for path in dict.fromkeys(changed)]
    paths += [(path, False) for path in readable(confines) if path not in changed]
    paths += [(confines.proxy, True)] if confines.proxy else []
    trees = tuple(
        Tree(path, path if in_place else f"{STAGE}/{number}", writable)
        for number, (path, writable) in enumerate(paths)
    )
    users, groups = accounts(uid, uid, confines.workspace)
    over = {"/etc/passwd": users, "/etc/group": groups} if in_place else {}
    return Plan(uid, uid, keep_root, trees=trees, over=over, staged=not in_place)
