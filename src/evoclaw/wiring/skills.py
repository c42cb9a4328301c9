"""Builds the skill registry of this machine, from the folder that the settings name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.genome import CONFIGURED, Genome

if TYPE_CHECKING:
    from evoclaw.skills.approvals import SkillApprovalFile
    from evoclaw.skills.registry import SkillRegistry

APPROVALS_FILE = "approved-skills.json"
WORKSPACE_SKILL_FOLDERS = (".agents/skills", ".claude/skills")
"""Where repositories keep skills; a skill there is used once you approved it."""


def skill_locations(env: Mapping[str, str]) -> tuple[Path, SkillApprovalFile, dict[str, str]]:
    """The folder of the skills, their approvals, and the tool names that they may not use."""
    from evoclaw.config.paths import default_data_folder

    return skills_folder(env), skill_approvals(default_data_folder(env)), reserved_tool_names()


def skills_folder(env: Mapping[str, str]) -> Path:
    """The folder of the skills."""
    from evoclaw.wiring.settings import orchestrator_settings

    return orchestrator_settings(env).orchestrator.tools.skills_path


def workspace_skill_folders(workspace: Path) -> tuple[Path, ...]:
    """The folders of a workspace that may contain skills."""
    return tuple(workspace / folder for folder in WORKSPACE_SKILL_FOLDERS)


def skill_catalogue(env: Mapping[str, str], workspace: Path, genome: Genome = CONFIGURED) -> str:
    """The skills as a genome has them, one line each, for the prompt of a model."""
    from evoclaw.skills.disclosure import skill_list
    from evoclaw.skills.tuned import TunedSkills

    return skill_list(TunedSkills(skill_registry(env, workspace), genome).skills())


def skill_approvals(home: Path) -> SkillApprovalFile:
    """The file of approved skills."""
    from evoclaw.skills.approvals import SkillApprovalFile

    return SkillApprovalFile(home / APPROVALS_FILE)


def skill_registry(env: Mapping[str, str], workspace: Path | None = None) -> SkillRegistry:
    """The skill registry, with the approved skills of a workspace; it reloads changed skills."""
    from evoclaw.skills.registry import SkillRegistry

    folder, approved, reserved_names = skill_locations(env)
    return SkillRegistry(
        [folder],
        approvals=approved,
        reserved=reserved_names,
        strict_roots=() if workspace is None else workspace_skill_folders(workspace),
    )


def reserved_tool_names() -> dict[str, str]:
    """The tool names that no skill may use, with the reason."""
    from evoclaw.core.tools import UNDO_TOOL
    from evoclaw.tools.catalogue import CATALOGUE

    return dict.fromkeys((*CATALOGUE, UNDO_TOOL), "a built-in tool")
