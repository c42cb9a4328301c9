"""The skills of this machine: those in the data folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.skills.approvals import ApprovalFile
    from evoclaw.skills.watching import Shelf

FOLDER, APPROVED = "skills", "approved-skills.json"


def skill_places(env: Mapping[str, str]) -> tuple[Path, ApprovalFile, dict[str, str]]:
    """Where the skills are, what was approved, and names that they may not use."""
    from evoclaw.config.places import default_data_folder

    home = default_data_folder(env)
    return home / FOLDER, approvals(home), reserved()


def skill_catalogue(env: Mapping[str, str]) -> str:
    """The skills there are, one line each, for a model."""
    from evoclaw.config.places import default_data_folder
    from evoclaw.skills.disclosure import catalogue

    return catalogue(shelf(default_data_folder(env)).skills())


def approvals(home: Path) -> ApprovalFile:
    """What was approved."""
    from evoclaw.skills.approvals import ApprovalFile

    return ApprovalFile(home / APPROVED)


def shelf(home: Path) -> Shelf:
    """The skills in use, looked at again when they change."""
    from evoclaw.skills.watching import Shelf

    return Shelf([home / FOLDER], approvals=approvals(home), reserved=reserved())


def reserved() -> dict[str, str]:
    """The names that no skill's tool may have."""
    from evoclaw.tools.sets import NAMES

    return dict.fromkeys(NAMES, "a built-in tool")
