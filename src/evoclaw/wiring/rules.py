"""The rules about commands, paths and hosts: those of the owner, or those we ship."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError

if TYPE_CHECKING:
    from evoclaw.core.ports import Policy
    from evoclaw.governance.autonomy import Level

ELSEWHERE = "/workspace"
"""What relative paths mean where the folder is another machine's."""


def rules_file(name: str, folder: Path) -> Path | None:
    """The file of rules that was configured; None for those we ship."""
    if not name:
        return None
    path = folder / name
    if not path.is_file():
        raise ConfigError(f"there is no file of rules {path}; see `evoclaw policy check`")
    return path


def command_rules(name: str, folder: Path, level: Level, workspace: Path | None) -> Policy:
    """Judges what calls do.

    Args:
        name: The file of rules, if one was configured.
        folder: Where it is looked for.
        level: An agent that may act by itself has a person's word for what cannot be seen through.
        workspace: Where calls run, if that is here.
    """
    from evoclaw.governance.advance import InAdvance
    from evoclaw.governance.autonomy import Level
    from evoclaw.governance.rules.disk import ThisDisk
    from evoclaw.governance.rules.examples import load_rules

    rules = load_rules(
        rules_file(name, folder),
        workspace=str(workspace or ELSEWHERE),
        home=os.environ.get("HOME", "/"),
        disk=None if workspace is None else ThisDisk(),
    )
    return InAdvance(rules) if level is Level.FULL else rules
