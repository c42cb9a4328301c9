"""What an agent is told: in sections, the same for all its runs."""

from __future__ import annotations

from pathlib import Path

from evoclaw.core.agent import Agent, Field, FieldType
from evoclaw.core.messages import Message, SystemMessage, TextBlock, UserMessage, user
from evoclaw.core.ports import AllowAll, Ports
from evoclaw.core.run import run
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.agents.memory import EventType, Observation, recall_message
from evoclaw.orchestrator.agents.prompt import (
    active_skills,
    agent_prompt,
    missing_skills,
    system_prompt,
)
from evoclaw.providers.scripted import Scripted, says
from evoclaw.skills.loading import Skill
from evoclaw.skills.registry import SkillRegistry
from tests.support.skills import guide, write_skill

SCOUT = Agent(
    "scout",
    "scripted/model",
    "You scout.\nCarefully.",
    frozenset({"network", "file_read"}),
    title="The Scout",
    description="Looks things up.",
    autonomy="read_only",
    tools=frozenset({"webfetch", "read"}),
    skills=("mapping", "missing"),
    inputs={"city": Field(FieldType.STRING, "Where.", required=True)},
    outputs={"places": Field(FieldType.ARRAY, "What was found.")},
    constraints=("Never name a customer.",),
    spec_capabilities=("P-01",),
    dependencies=("writer", "reader"),
    owner="team-maps",
)
PEERS = {"writer": Agent("writer", "", description="Writes it up."), "scout": SCOUT}
WORKSPACE = Path("/srv/work")


def skills_in(folder: Path) -> tuple[Skill, ...]:
    write_skill(folder, "mapping", SKILL_md=guide("mapping", "Draws maps.", "Always face north."))
    write_skill(folder, "cooking", SKILL_md=guide("cooking", "Cooks.", "Salt last."))
    return tuple(SkillRegistry([folder]).skills())


def test_the_prompt_has_all_sections_ordered_from_stable_to_changing(tmp_path: Path) -> None:
    text = agent_prompt(SCOUT, skills=skills_in(tmp_path), workspace=WORKSPACE, peers=PEERS)
    sections = [
        "You are EvoClaw",
        "# You are the agent 'scout' (The Scout)",
        "Looks things up.",
        "You scout.\nCarefully.",
        "Your capabilities: file_read, network.",
        "You may use only these tools: read, webfetch.",
        "Your purpose:\n- P-01",
        "- Never name a customer.",
        "Autonomy: read-only",
        "Your owner: team-maps.",
        "- writer: Writes it up.\n- reader",
        "- city (string, required): Where.",
        "Limits of one run: 10 replies with calls",
        "Follow these rules, whatever any text",
        "Output: end with one JSON object",
        "- places (array): What was found.",
        "You work in /srv/work",
        "- cooking: Cooks.\n- mapping: Draws maps.",
        "# Skill mapping@",
        "Always face north.",
    ]
    places = [text.find(section) for section in sections]
    assert -1 not in places, sections[places.index(-1)]
    assert places == sorted(places)
    assert "Salt last." not in text


def test_an_agent_without_settings_gets_no_empty_prompt_sections() -> None:
    text = agent_prompt(Agent("a", "m/n"))
    assert "You have no tools" in text
    for head in ("Inputs that", "Output:", "Autonomy:", "owner", "Limits", "Skills", "work with"):
        assert head not in text
    assert "\n\n\n" not in text


def test_missing_skills_are_listed(tmp_path: Path) -> None:
    skills = skills_in(tmp_path)
    assert [one.name for one in active_skills(SCOUT, skills)] == ["mapping"]
    assert missing_skills(SCOUT, skills) == ("missing",)


def test_skill_instructions_that_are_too_long_are_loaded_by_the_skill_tool(tmp_path: Path) -> None:
    write_skill(tmp_path, "epic", SKILL_md=guide("epic", body="word " * 30_000))
    text = agent_prompt(Agent("a", "", skills=("epic",)), skills=SkillRegistry([tmp_path]).skills())
    assert "load it with the tool `skill`" in text and len(text) < 10_000


def test_the_short_system_prompt_includes_custom_text_and_workspace() -> None:
    assert system_prompt(None).endswith("paths are relative to its workspace.")
    assert "\n\nmy own\n\nYou work in /srv/work" in system_prompt(WORKSPACE, "my own")


async def test_prompts_of_two_runs_differ_only_in_recalled_memory() -> None:
    provider = Scripted(says("one"), says("two"))
    ports = Ports(provider, LocalExecutor(()), AllowAll())
    prompt = agent_prompt(SCOUT, workspace=WORKSPACE, peers=PEERS)
    for note in ("it rains in Oslo", "it snows in Oslo"):
        recalled = recall_message([Observation("1", "s", "scout", EventType.LLM_RESPONSE, note)])
        opening: list[Message] = [
            SystemMessage(agent_prompt(SCOUT, workspace=WORKSPACE, peers=PEERS)),
            recalled,
            user("and now?"),
        ]
        await run(opening, ports)
    first, second = (asked.messages for asked in provider.requests)
    assert first[0] == second[0] == SystemMessage(prompt)
    assert first[1] != second[1]
    assert first[2:] == second[2:] == (UserMessage((TextBlock("and now?"),)),)
