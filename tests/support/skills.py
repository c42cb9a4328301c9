"""Skills made in a temporary folder."""

from __future__ import annotations

from pathlib import Path

from evoclaw.skills.loading import Skill, load_skill
from evoclaw.skills.registry import SkillRegistry

HELLO = "#!/bin/sh\necho hello\n"


def guide(
    name: str, description: str = "Does something.", body: str = "Do it.", **more: str
) -> str:
    lines = [f"name: {name}", f"description: {description}"]
    lines += [f"{key.replace('_', '-')}: {value}" for key, value in more.items()]
    return "\n".join(["---", *lines, "---", "", body, ""])


def manifest(*tools: str, version: str = "", binary: str = "bin/run", extra: str = "") -> str:
    text = f'[skill]\nversion = "{version}"\n' if version else ""
    for tool in tools:
        text += f'[[tools]]\nname = "{tool}"\nbinary = "{binary}"\ndescription = "It."\n{extra}\n'
    return text


def write_skill(root: Path, name: str, **files: str | bytes) -> Path:
    """Write a skill; `SKILL_md` and `skill_toml` are its two files, `run` its program."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    named = {"SKILL_md": "SKILL.md", "skill_toml": "skill.toml", "run": "bin/run"}
    for key, content in files.items():
        path = folder / named.get(key, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        if path.parent.name == "bin":
            path.chmod(0o755)
    return folder


def write_tool_skill(
    root: Path, name: str, *tools: str, version: str = "", run: str = HELLO
) -> Path:
    return write_skill(root, name, skill_toml=manifest(*tools, version=version), run=run)


def load(folder: Path, platform: str = "linux") -> Skill:
    return load_skill(folder, platform=platform)


def reasons(shelf: SkillRegistry) -> str:
    return "\n".join(f"{one.path}: {one.reason}" for one in shelf.problems())
