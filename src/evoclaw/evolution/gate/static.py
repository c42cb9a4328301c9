"""The static stage: what can be said about a candidate without running it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from evoclaw.core.agent import Agent
from evoclaw.core.errors import ToolFailure
from evoclaw.core.genome import Genome
from evoclaw.core.genome_patches import check_skills
from evoclaw.core.hidden_text import hidden_kinds
from evoclaw.core.tools import Tool
from evoclaw.evolution.candidates import StageResult
from evoclaw.evolution.gate.leaks import LeakCheck

NEEDS_PERSON = "needs_person"
"""The key of the evidence that says why only a person can approve a candidate: a list, which is
empty if a key may sign it."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_ADDRESS = re.compile(r"(?i)\b(?:https?|ftp|wss?|mqtts?)://[^\s\"'<>)]+|\b[\w.+-]+@[\w-]+\.[\w.-]+")
_COMMANDS_TO_A_MODEL = re.compile(
    r"(?i)\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}"
    r"\b(?:instructions?|rules?|polic(?:y|ies)|prompts?|restrictions?|guidelines?|approvals?)\b"
    r"|\b(?:do not|don't|never|without) (?:ask|tell|inform|notify|mention|asking|telling)"
    r".{0,20}\b(?:user|person|people|human|operator|anyone)\b"
    r"|\b(?:instructions?|requests?|commands?) (?:in|inside|of|from) "
    r"(?:\w+ ){0,3}(?:results?|pages?|files?|documents?|e-?mails?|messages?|tools?)\b"
    r"|\b(?:api[_ -]?keys?|passwords?|credentials?|secret tokens?)\b"
    r"|<\|?/?(?:system|im_start|im_end|assistant|tool_call)\b|\[/?INST\]"
)
"""What a lesson from runs has no reason to say, and injected text often says."""


class StaticLimits(Struct, frozen=True, kw_only=True):
    """The sizes that a candidate must keep."""

    max_chars: Annotated[int, Meta(ge=1)] = 60_000
    """Characters of all texts of the genome."""
    max_added_chars: Annotated[int, Meta(ge=1)] = 20_000
    """Characters of the texts that the old genome does not have."""


def static_result(
    agent: Agent,
    tools: Sequence[Tool],
    old: Genome,
    new: Genome,
    *,
    digest: str,
    untrusted: bool,
    skills: Mapping[str, frozenset[str]],
    check: Callable[[Genome], None],
    leaks: LeakCheck,
    limits: StaticLimits | None = None,
    tool_prompt: str = "",
) -> StageResult:
    """Judge a candidate by its content.

    Args:
        agent: As configured, without a genome.
        tools: All tools that the agent could be offered, with their own descriptions.
        old: The current genome.
        new: The candidate.
        digest: What the lineage says that the digest of the candidate is.
        untrusted: Whether the proposal contains text of untrusted origin.
        skills: The skills of this machine, and the names of the tools of each.
        check: Raises `ToolFailure` for a genome that the configuration does not allow: its models
            and limits.
        leaks: Looks for what only hidden cases say.
        limits: The sizes to keep.
        tool_prompt: The text that the agent's model reads instead of a genome's `tool_prompt`.
    """
    limits = limits or StaticLimits()
    added = _added([tool_prompt, *_texts(old)], _texts(new))
    known = [agent.prompt, tool_prompt, *(tool.description for tool in tools), *_texts(old)]
    total, more = sum(map(len, _texts(new))), sum(map(len, added))
    problems = [
        *_configuration_problems(new, skills, check),
        *_permission_problems(tools, skills, old, new),
        *leaks.find(added, known),
        *_hidden_problems(new),
    ]
    if new.digest != digest:
        problems.append("its content does not have the digest that the lineage records")
    if total > limits.max_chars:
        problems.append(f"its texts have {total} characters; the limit is {limits.max_chars}")
    if more > limits.max_added_chars:
        problems.append(f"it adds {more} characters; the limit is {limits.max_added_chars}")
    return StageResult(
        passed=not problems,
        reason="; ".join(dict.fromkeys(problems)),
        evidence={
            NEEDS_PERSON: [*_reasons_for_a_person(added, known, untrusted=untrusted)],
            "chars": total,
            "added_chars": more,
        },
    )


def _texts(genome: Genome) -> list[str]:
    """All that a model may read of a genome."""
    found = [genome.prompt, *genome.notes, *genome.skill_texts.values(), genome.tool_prompt]
    for text in genome.tools.values():
        found += [text.description, *text.examples]
    for skill in genome.new_skills.values():
        found += [skill.description, skill.instructions]
    names = (
        *genome.skill_texts,
        *genome.new_skills,
        *genome.tools,
        *(genome.skills or ()),
        *genome.models,
    )
    return [text for text in (*found, *names) if text]


def _added(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """The texts that are not among the old ones; of a longer text, its new lines."""
    lines = {line.strip() for text in old for line in text.splitlines()}
    return [
        "\n".join(line for line in text.splitlines() if line.strip() not in lines)
        for text in new
        if text not in old
    ]


def _configuration_problems(
    new: Genome, skills: Mapping[str, frozenset[str]], check: Callable[[Genome], None]
) -> Iterator[str]:
    try:
        check_skills(new, skills)
        check(new)
    except ToolFailure as refused:
        yield refused.message


def _permission_problems(
    tools: Sequence[Tool], skills: Mapping[str, frozenset[str]], old: Genome, new: Genome
) -> Iterator[str]:
    before, after = _reachable(tools, skills, old), _reachable(tools, skills, new)
    if more := sorted(after.keys() - before.keys()):
        yield f"it enables tools that the current genome does not have: {', '.join(more)}"
    held = frozenset[str]().union(*(tool.permissions for tool in before.values()))
    wanted = frozenset[str]().union(*(tool.permissions for tool in after.values()))
    if more := sorted(wanted - held):
        yield f"it needs permissions that the current genome does not: {', '.join(more)}"


def _reachable(
    tools: Sequence[Tool], skills: Mapping[str, frozenset[str]], genome: Genome
) -> dict[str, Tool]:
    """The tools that are offered with a genome: those of disabled skills are not."""
    hidden: set[str] = set()
    if genome.skills is not None:
        for skill, names in skills.items():
            hidden |= names if skill not in genome.skills else set()
    return {tool.name: tool for tool in tools if tool.name not in hidden}


def _hidden_problems(new: Genome) -> Iterator[str]:
    for text in _texts(new):
        if kinds := hidden_kinds(text):
            yield f"a text contains what people cannot see: {', '.join(kinds)}"
        if _CONTROL.search(text):
            yield "a text contains control characters"


def _reasons_for_a_person(
    added: Sequence[str], known: Sequence[str], *, untrusted: bool
) -> Iterator[str]:
    if untrusted:
        yield "it contains text of untrusted origin"
    before = "\n".join(known)
    for text in added:
        if found := _COMMANDS_TO_A_MODEL.search(" ".join(text.split())):
            yield f"a text reads like an injected instruction: {found[0][:80]!r}"
        for address in _ADDRESS.findall(text):
            if address not in before:
                yield f"a text contains a new address: {address[:80]!r}"
