"""Builds the skill registry of this machine, from the folder that the settings name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.skills.approvals import ApprovalFile
    from evoclaw.skills.watching import Shelf

APPROVED = "approved-skills.json"


def skill_places(env: Mapping[str, str]) -> tuple[Path, ApprovalFile, dict[str, str]]:
    """The folder of the skills, their approvals, and the tool names that they may not use."""
    from evoclaw.config.places import default_data_folder

    return skills_folder(env), approvals(default_data_folder(env)), reserved()


def skills_folder(env: Mapping[str, str]) -> Path:
    """The folder of the skills."""
    from evoclaw.wiring.settings import orchestrator_settings

    return orchestrator_settings(env).orchestrator.tools.skills_path


def skill_catalogue(env: Mapping[str, str]) -> str:
    """The skills, one line each, for the prompt of a model."""
    from evoclaw.skills.disclosure import catalogue

    return catalogue(shelf(env).skills())


def approvals(home: Path) -> ApprovalFile:
    """The file of approved skills."""
    from evoclaw.skills.approvals import ApprovalFile

    return ApprovalFile(home / APPROVED)


def shelf(env: Mapping[str, str]) -> Shelf:
    """The skill registry; it reloads skills whose files change."""
    from evoclaw.skills.watching import Shelf

    folder, approved, reserved_names = skill_places(env)
    return Shelf([folder], approvals=approved, reserved=reserved_names)


def reserved() -> dict[str, str]:
    """The tool names that no skill may use, with the reason."""
    from evoclaw.tools.sets import NAMES

    return dict.fromkeys(NAMES, "a built-in tool")
