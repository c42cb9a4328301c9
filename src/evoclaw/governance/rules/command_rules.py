"""The rules about commands, paths and hosts: those of the owner, or those we ship."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import Policy, Verdict
from evoclaw.core.tools import Call
from evoclaw.governance.advance import InAdvance
from evoclaw.governance.autonomy import Level

if TYPE_CHECKING:
    from evoclaw.governance.rules.document import Document
    from evoclaw.governance.rules.policy import Rules

ELSEWHERE = "/workspace"
"""What relative paths mean where the folder is another machine's."""

OWN = "~/.evoclaw"
"""The data folder as the shipped rules name it; an edge's own workspace may lie deep inside."""
BESIDE = (
    "*.*", "artifacts", "audit", "broker", "canvas", "lock", "pairing", "password", "rates",
    "runs", "skills", "tools",
)  # fmt: skip
"""What of ours lies on the way to such a workspace."""


def rules_file(name: str, folder: Path) -> Path | None:
    """The file of rules that was configured; None for those we ship."""
    if not name:
        return None
    path = folder / name
    if not path.is_file():
        raise ConfigError(f"there is no file of rules {path}; see `evoclaw policy check`")
    return path


def command_rules(
    name: str, folder: Path, level: Level, workspace: Path | None, *, sandboxed: bool = True
) -> Policy:
    """Judges what calls do.

    Args:
        name: The file of rules, if one was configured.
        folder: Where it is looked for.
        level: An agent that may act by itself has a person's word for what cannot be seen through.
        workspace: Where calls run, if that is here.
        sandboxed: Whether a sandbox bounds what cannot be seen through; else that is always asked.
    """
    file = rules_file(name, folder)
    rules = CommandRules(file, workspace)
    if file is not None:
        # The owner's rules are read at once: what is wrong with them must be reported at once.
        rules.load()
    return InAdvance(rules) if sandboxed and level is Level.FULL else rules


class CommandRules(Policy):
    """Judges the commands, paths and hosts of a call by the file of rules."""

    def __init__(self, file: Path | None, workspace: Path | None) -> None:
        """The shipped rules, without a file, are read when the first call is judged."""
        self.file, self._workspace = file, workspace
        self._rules: Rules | None = None

    def load(self) -> Rules:
        """The rules, read if that has not happened yet."""
        if self._rules is None:
            self._rules = loaded_rules(self.file, self._workspace)
        return self._rules

    async def judge(self, call: Call) -> Verdict:
        """Judge as the rules do."""
        return await (self._rules or self.load()).judge(call)


def loaded_rules(file: Path | None, workspace: Path | None) -> Rules:
    """The rules of a file, or those we ship, for calls in a workspace."""
    from evoclaw.governance.rules.disk import ThisDisk
    from evoclaw.governance.rules.document import shipped_rules
    from evoclaw.governance.rules.examples import load_rules
    from evoclaw.governance.rules.policy import Rules

    home = os.environ.get("HOME", "/")
    place, disk = str(workspace or ELSEWHERE), None if workspace is None else ThisDisk()
    if file is not None:
        return load_rules(file, workspace=place, home=home, disk=disk)
    document = _around(shipped_rules(), Path(place), home)
    return Rules(document, workspace=place, home=home, disk=disk)


def _around(document: Document, workspace: Path, home: str) -> Document:
    """The same, but that a workspace inside our folder may be worked in, and nothing beside it."""
    from msgspec.structs import replace

    own = Path(home, OWN.partition("/")[2])
    if own not in workspace.parents:
        return document
    above = [one for one in workspace.parents if one == own or own in one.parents]
    beside = tuple(f"{one}/{name}" for one in above for name in BESIDE)
    rules = tuple(
        replace(rule, paths=(*(path for path in rule.paths if path != OWN), *beside))
        if OWN in rule.paths
        else rule
        for rule in document.rules
    )
    return replace(document, rules=rules)
