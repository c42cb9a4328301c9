"""A skill whose instructions were loaded narrows what is offered."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.tools import Call
from evoclaw.executors.local import LocalExecutor
from evoclaw.skills.active import ActiveSkillTools, restrict_tools
from evoclaw.skills.disclosure import (
    RegistrySkillReader,
)
from evoclaw.skills.registry import SkillRegistry
from evoclaw.tools.fake import FakeOps
from evoclaw.tools.files import read, write
from evoclaw.tools.search import grep
from evoclaw.tools.shell import bash
from evoclaw.tools.skill import SkillReader, skill
from tests.support.skills import guide, write_skill


def narrowed(root: Path) -> Pipeline:
    shelf = SkillRegistry([root])
    given: dict[type, object] = {SkillReader: RegistrySkillReader(shelf)}
    machine = FakeOps({"a.txt": "hello"})
    tools = LocalExecutor([read, write, grep, skill], files=machine, given=given)
    return Pipeline([tools], [ActiveSkillTools(shelf)])


def names(executor: Pipeline) -> list[str]:
    return [tool.name for tool in executor.tools()]


async def use(executor: Pipeline, which: str, /, **arguments: JSON) -> str:
    tool = next(one.tool for one in (read, write, grep, skill) if one.name == which)
    call = Call("c", tool, arguments, "r.1.0.1", 5)
    return (await executor.execute(call, lambda text: None)).text


async def test_an_active_skill_restricts_the_offered_tools(tmp_path: Path) -> None:
    write_skill(tmp_path, "reading", **{"SKILL.md": guide("reading", allowed_tools="Read Grep")})
    executor = narrowed(tmp_path)
    assert names(executor) == ["read", "write", "grep", "skill"]

    await use(executor, "skill")
    assert "write" in names(executor), "to see which there are makes none active"
    await use(executor, "skill", name="reading")

    assert names(executor) == ["read", "grep", "skill"]
    assert executor.tools() is executor.tools()
    assert "hello" in await use(executor, "read", path="a.txt")
    with pytest.raises(ToolFailure) as refused:
        await use(executor, "write", path="b.txt", content="x")
    assert refused.value.kind is ErrorKind.NOT_FOUND


async def test_two_active_skills_leave_only_their_common_tools(tmp_path: Path) -> None:
    write_skill(tmp_path, "one", **{"SKILL.md": guide("one", allowed_tools="Read Grep")})
    write_skill(tmp_path, "two", **{"SKILL.md": guide("two", allowed_tools="Read Write")})
    executor = narrowed(tmp_path)
    for name in ("one", "two", "one"):
        await use(executor, "skill", name=name)
    assert names(executor) == ["read", "skill"]
    (step,) = executor.offer
    assert isinstance(step, ActiveSkillTools)
    assert [skill.name for skill in step.active] == ["one", "two"]


async def test_a_skill_without_allowed_tools_restricts_nothing(tmp_path: Path) -> None:
    write_skill(tmp_path, "plain", **{"SKILL.md": guide("plain")})
    executor = narrowed(tmp_path)
    await use(executor, "skill", name="plain")
    assert names(executor) == ["read", "write", "grep", "skill"]


async def test_a_skill_takes_away_the_tools_that_it_disallows(tmp_path: Path) -> None:
    write_skill(tmp_path, "quiet", SKILL_md=guide("quiet", disallowed_tools="Write"))
    write_skill(
        tmp_path, "both", SKILL_md=guide("both", allowed_tools="read grep", disallowed_tools="grep")
    )
    executor = narrowed(tmp_path)
    await use(executor, "skill", name="quiet")
    assert names(executor) == ["read", "grep", "skill"]
    await use(executor, "skill", name="both")
    assert names(executor) == ["read", "skill"]
    with pytest.raises(ToolFailure):
        await use(executor, "write", path="b.txt", content="x")


async def test_a_skill_names_a_tool_by_its_alias(tmp_path: Path) -> None:
    write_skill(tmp_path, "one", SKILL_md=guide("one", disallowed_tools="shell"))
    write_skill(tmp_path, "two", SKILL_md=guide("two", allowed_tools="shell read"))
    one, two = SkillRegistry([tmp_path]).skills()
    tools = [bash.tool, read.tool]
    assert [tool.name for tool in restrict_tools(tools, [one])] == ["read"]
    assert [tool.name for tool in restrict_tools(tools, [two])] == ["bash", "read"]
