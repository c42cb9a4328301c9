"""The policy about commands, paths and hosts, by the owner's rules or the shipped ones.

Pre-approval: an agent with full autonomy need not ask about commands that are only unclear.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.pipeline import kind_of
from evoclaw.core.ports import Allow, Ask, Policy, Verdict
from evoclaw.core.tools import Call
from evoclaw.governance.autonomy import Level

if TYPE_CHECKING:
    from evoclaw.governance.rules.document import RuleDocument
    from evoclaw.governance.rules.policy import RulePolicy


class PolicySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[policy]`."""

    rules: str = ""
    """A rules file, absolute or relative to the data folder [the shipped rules]."""
    off: dict[str, str] = {}
    """Tools that are disabled, by name or with `*`, each with the reason."""


PREAPPROVED_CODES = frozenset({"unreadable", "code", "environment", "maybe"})
"""Codes of an Ask which only says that a command cannot be analysed; the sandbox bounds it. The
part after a colon does not count: `maybe:NAME` means that the rule NAME may apply."""


@dataclass(frozen=True, slots=True)
class PreApproval(Policy):
    """Turns an Ask of a policy with one of these codes into an Allow; denials stay denials."""

    rule: Policy
    codes: frozenset[str] = PREAPPROVED_CODES

    @property
    def kind(self) -> type:
        """The step kind of the wrapped policy."""
        return kind_of(self.rule)

    async def judge(self, call: Call) -> Verdict:
        """Judge as the wrapped policy does; the code says that the call was pre-approved."""
        verdict = await self.rule.judge(call)
        if isinstance(verdict, Ask) and verdict.code.partition(":")[0] in self.codes:
            return Allow(f"in_advance:{verdict.code}")
        return verdict

    async def admit(self, turn: int) -> Verdict:
        """Judge a turn as the wrapped policy does."""
        return await self.rule.admit(turn)


REMOTE_WORKSPACE = "/workspace"
"""The workspace that relative paths refer to when calls run on another machine."""

DATA_FOLDER = "~/.evoclaw"
"""The data folder as the shipped rules name it; an edge's workspace may be inside it."""
DATA_FOLDER_ENTRIES = (
    "*.*", "artifacts", "audit", "broker", "canvas", "lock", "pairing", "password", "rates",
    "runs", "skills", "tools",
)  # fmt: skip
"""EvoClaw's own files in the data folder, which stay protected beside such a workspace."""


def rules_file(name: str, folder: Path) -> Path | None:
    """The configured rules file; None for the shipped rules."""
    if not name:
        return None
    path = folder / name
    if not path.is_file():
        raise ConfigError(
            f"the rules file {path} does not exist; correct `rules` of [policy], or remove it"
        )
    return path


def command_rules(
    name: str, folder: Path, level: Level, workspace: Path | None, *, sandboxed: bool = True
) -> Policy:
    """The policy that judges commands, paths and hosts.

    Args:
        name: The configured rules file; empty for the shipped rules.
        folder: The folder that a relative name refers to.
        level: With full autonomy, commands that cannot be analysed are pre-approved, if the rules
            allow what they do not name.
        workspace: Where calls run; None if they run on another machine.
        sandboxed: Whether commands run in a sandbox; without one nothing is pre-approved.
    """
    from evoclaw.governance.rules.document import RuleAction

    file = rules_file(name, folder)
    rules = CommandRules(file, workspace)
    # Load the owner's rules now: their mistakes must be reported at start.
    allowing = file is None or rules.load().document.default is RuleAction.ALLOW
    return PreApproval(rules) if sandboxed and allowing and level is Level.FULL else rules


class CommandRules(Policy):
    """Judges the commands, paths and hosts of a call by the file of rules."""

    def __init__(self, file: Path | None, workspace: Path | None) -> None:
        """Without a file, the shipped rules are loaded when the first call is judged."""
        self.file, self._workspace = file, workspace
        self._rules: RulePolicy | None = None

    def load(self) -> RulePolicy:
        """Load the rules, unless they are loaded already."""
        if self._rules is None:
            self._rules = loaded_rules(self.file, self._workspace)
        return self._rules

    async def judge(self, call: Call) -> Verdict:
        """Judge a call by the rules."""
        return await (self._rules or self.load()).judge(call)


def loaded_rules(file: Path | None, workspace: Path | None) -> RulePolicy:
    """The rules of a file, or the shipped ones, for calls in a workspace."""
    from evoclaw.governance.rules.document import shipped_rules
    from evoclaw.governance.rules.examples import load_rules
    from evoclaw.governance.rules.path_resolver import LocalPathResolver
    from evoclaw.governance.rules.policy import RulePolicy

    home = os.environ.get("HOME", "/")
    root, disk = (
        str(workspace or REMOTE_WORKSPACE),
        None if workspace is None else LocalPathResolver(),
    )
    if file is not None:
        return load_rules(file, workspace=root, home=home, disk=disk)
    document = _allow_inner_workspace(shipped_rules(), Path(root), home)
    return RulePolicy(document, workspace=root, home=home, resolver=disk)


def _allow_inner_workspace(document: RuleDocument, workspace: Path, home: str) -> RuleDocument:
    """Rules that allow a workspace inside the data folder, but nothing else of that folder."""
    from msgspec.structs import replace

    own = Path(home, DATA_FOLDER.partition("/")[2])
    if own not in workspace.parents:
        return document
    above = [folder for folder in workspace.parents if folder == own or own in folder.parents]
    beside = tuple(f"{folder}/{name}" for folder in above for name in DATA_FOLDER_ENTRIES)
    rules = tuple(
        replace(rule, paths=(*(path for path in rule.paths if path != DATA_FOLDER), *beside))
        if DATA_FOLDER in rule.paths
        else rule
        for rule in document.rules
    )
    return replace(document, rules=rules)
