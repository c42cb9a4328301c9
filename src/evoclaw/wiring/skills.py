"""The skills of this machine: those in the data folder, or where the settings say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.skills.approvals import ApprovalFile
    from evoclaw.skills.watching import Shelf

APPROVED = "approved-skills.json"


def skill_places(env: Mapping[str, str]) -> tuple[Path, ApprovalFile, dict[str, str]]:
    """Where the skills are, what was approved, and names that they may not use."""
    from evoclaw.config.places import default_data_folder

    return skills_folder(env), approvals(default_data_folder(env)), reserved()


def skills_folder(env: Mapping[str, str]) -> Path:
    """Where the skills are."""
    from evoclaw.wiring.settings import orchestrator_settings

    return orchestrator_settings(env).orchestrator.tools.skills_path


def skill_catalogue(env: Mapping[str, str]) -> str:
    """The skills there are, one line each, for a model."""
    from evoclaw.skills.disclosure import catalogue

    return catalogue(shelf(env).skills())


def approvals(home: Path) -> ApprovalFile:
    """What was approved."""
    from evoclaw.skills.approvals import ApprovalFile

    return ApprovalFile(home / APPROVED)


def shelf(env: Mapping[str, str]) -> Shelf:
    """The skills in use, looked at again when they change."""
    from evoclaw.skills.watching import Shelf

    folder, approved, taken = skill_places(env)
    return Shelf([folder], approvals=approved, reserved=taken)


def reserved() -> dict[str, str]:
    """The names that no skill's tool may have."""
    from evoclaw.tools.sets import NAMES

    return dict.fromkeys(NAMES, "a built-in tool")
