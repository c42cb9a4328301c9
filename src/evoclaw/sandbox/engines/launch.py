"""`LaunchPlan`: as which user an engine starts, and where it finds the sandbox's folders."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.sandbox.engines.host_view import account_files, is_below, readable_paths, tenant_uid

STAGING_FOLDER = "/tmp"


class StagedTree(Struct, frozen=True):
    """A folder that is mounted in the staging folder."""

    path: str
    place: str
    writable: bool


class LaunchPlan(Struct, frozen=True):
    """What `launcher_program.py` prepares before the engine starts."""

    uid: int | None = None
    """The service user; None: this process is not root, and commands run as its user."""
    gid: int | None = None
    keep_root: bool = False
    """The engine itself needs root, and drops to the service user on its own."""
    stage: str = STAGING_FOLDER
    trees: tuple[StagedTree, ...] = ()
    staged: bool = True
    """Whether the trees are shown in the staging folder."""
    files: dict[str, str] = {}
    """Texts, by the descriptor at which the engine reads them."""
    over: dict[str, str] = {}
    """Texts that are mounted over files."""

    def source(self, path: str) -> str:
        """The path outside of what the sandbox shows at this path."""
        for tree in sorted(self.trees, key=lambda tree: -len(tree.path)):
            if is_below(path, tree.path):
                return tree.place + path.removeprefix(tree.path)
        return path

    @property
    def ids(self) -> tuple[int, int]:
        """The uid and gid that the command runs as."""
        if self.uid is None or self.gid is None:
            return os.geteuid(), os.getegid()
        return self.uid, self.gid

    def command(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """The command line that prepares everything and becomes `argv`."""
        program = str(Path(__file__).with_name("launcher_program.py"))
        plan = msgspec.json.encode(self).decode()
        return (sys.executable, "-I", "-S", program, plan, *argv)


def plan_launch(
    policy: SandboxPolicy, *, keep_root: bool = False, in_place: bool = False
) -> LaunchPlan:
    """As which user a sandbox's commands run, and where its folders are found.

    Args:
        policy: What the sandbox shows.
        keep_root: The engine itself needs root, and drops to the service user on its own.
        in_place: The engine shows folders at their own paths, and looks up its user: each is
            mounted over itself rather than in the staging folder.
    """
    if os.geteuid() != 0:
        return LaunchPlan()
    uid = tenant_uid(policy.tenant)
    changed = (policy.workspace, *policy.writable)
    paths = [(path, True) for path in dict.fromkeys(changed)]
    paths += [(path, False) for path in readable_paths(policy) if path not in changed]
    paths += [(policy.proxy, True)] if policy.proxy else []
    trees = tuple(
        StagedTree(path, path if in_place else f"{STAGING_FOLDER}/{number}", writable)
        for number, (path, writable) in enumerate(paths)
    )
    users, groups = account_files(uid, uid, policy.workspace)
    over = {"/etc/passwd": users, "/etc/group": groups} if in_place else {}
    return LaunchPlan(uid, uid, keep_root, trees=trees, over=over, staged=not in_place)
