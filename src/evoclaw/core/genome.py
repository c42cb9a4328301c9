"""The genome: the texts and small numbers of an agent that may be tuned, and nothing else.

Policies, permissions, the sandbox, budgets, tokens, keys, and whatever evaluates a genome are not
part of it: the type has no field for them, and refuses unknown fields.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from evoclaw.core.canonical_json import canonical_hash
from evoclaw.core.messages import JSON

SkillName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
_Note: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1_000)]
_SkillText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=32_000)]
_NewSkillName: TypeAlias = Annotated[str, Meta(max_length=64, pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
_ToolName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
_PLACEHOLDER = "(?:names|tools|example|answer|shell_examples)"
_ToolPrompt: TypeAlias = Annotated[
    str,
    Meta(
        max_length=4_000,
        pattern=r"^(?:(?![\s\S])"  # empty, or: the tools once, and no unknown placeholder
        r"|(?=[\s\S]*\{tools\})(?![\s\S]*\{tools\}[\s\S]*\{tools\})"
        rf"(?![\s\S]*\{{(?!{_PLACEHOLDER}\}})\s*\w[^{{}}\"'\s]*\s*\}}))",
    ),
]
_ModelName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]


class ToolText(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a model reads about a tool, instead of the tool's own description."""

    description: Annotated[str, Meta(max_length=4_000)] = ""
    """Empty: the tool's own."""
    examples: Annotated[tuple[_Note, ...], Meta(max_length=10)] = ()
    """Calls, shown after the description."""


class NewSkill(Struct, frozen=True, forbid_unknown_fields=True):
    """A skill that only a genome has: instructions, without programs, files or permissions."""

    description: Annotated[str, Meta(min_length=1, max_length=300)]
    """When to use it, in one line."""
    instructions: _SkillText
    """What the model reads when it loads the skill."""


class Genome(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tunables of an agent; those that are not set are as configured."""

    prompt: Annotated[str, Meta(max_length=16_000)] = ""
    """Instructions of the agent, instead of the configured ones."""
    notes: Annotated[tuple[_Note, ...], Meta(max_length=100)] = ()
    """Lessons, one line each, after the instructions."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """The sampling temperature."""
    max_turns: Annotated[int, Meta(ge=1, le=100)] | None = None
    """Turns of a run."""
    call_seconds: Annotated[float, Meta(gt=0, le=3600)] | None = None
    """The maximum seconds of a call; None is the tool's own limit."""
    run_seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    """The maximum seconds of a run."""
    tool_error_limit: Annotated[int, Meta(ge=1, le=100)] | None = None
    """Failed turns in a row after which a run ends: how often the model may try again."""
    model_retries: Annotated[int, Meta(ge=0, le=20)] | None = None
    """How often a failed request to the model's server is repeated."""
    concurrency: Annotated[int, Meta(ge=1, le=64)] | None = None
    """Commands that an edge serves at the same time, within the edge's own limit."""
    skills: Annotated[tuple[SkillName, ...], Meta(max_length=200)] | None = None
    """The enabled skills; None is all."""
    skill_texts: Annotated[dict[SkillName, _SkillText], Meta(max_length=20)] = {}
    """Instructions of skills, instead of those in their folders."""
    new_skills: Annotated[dict[_NewSkillName, NewSkill], Meta(max_length=20)] = {}
    """Skills without a folder; one of a folder with the same name is used instead."""
    tools: Annotated[dict[_ToolName, ToolText], Meta(max_length=200)] = {}
    """What the model reads about tools."""
    tool_prompt: _ToolPrompt = ""
    """What tells a model without native calls its tools and how to call them, instead of the text
    of this release. With `{answer}` it is for models that call in JSON, without it for others."""
    models: Annotated[tuple[_ModelName, ...], Meta(max_length=20)] = ()
    """The order of models, among those that the agent is configured with."""
    version: int = 0
    """0 is the configuration."""
    restored: int | None = None
    """The version that a rollback restored."""

    def content(self) -> dict[str, JSON]:
        """What is set, without the version, as JSON."""
        found = {
            name: value
            for name in GENOME_RULES
            if (value := getattr(self, name)) != getattr(CONFIGURED, name)
        }
        return msgspec.json.decode(msgspec.json.encode(found))

    @property
    def digest(self) -> str:
        """Identifies the content; empty for the configuration, which sets nothing."""
        content = self.content()
        return canonical_hash(content) if content else ""

    def view(self, names: Collection[str]) -> dict[str, JSON]:
        """The tunables of these names, and the version, as JSON."""
        return msgspec.to_builtins({name: getattr(self, name) for name in (*names, *_VERSION)})


CONFIGURED = Genome()
"""Version 0: sets nothing."""
GENOME_RULES: Mapping[str, str] = {
    "prompt": "text of at most 16000 characters",
    "notes": "a list of at most 100 texts of at most 1000 characters",
    "temperature": "a number from 0 to 2, or null",
    "max_turns": "a whole number from 1 to 100, or null",
    "call_seconds": "a number above 0 and up to 3600, or null",
    "run_seconds": "a number above 0 and up to 86400, or null",
    "tool_error_limit": "a whole number from 1 to 100, or null",
    "model_retries": "a whole number from 0 to 20, or null",
    "concurrency": "a whole number from 1 to 64, or null",
    "skills": "a list of at most 200 names, or null for all",
    "skill_texts": "an object of at most 20 skills, each with a text of at most 32000 characters",
    "new_skills": "an object of at most 20 skills, named with a-z, 0-9 and single hyphens, each "
    "with a `description` of at most 300 characters and `instructions` of at most 32000",
    "tools": "an object of at most 200 tools, each with a `description` of at most 4000 "
    "characters, a list of at most 10 `examples`, or both",
    "tool_prompt": "text of at most 4000 characters that has {tools} once, and no other "
    "placeholders than {names}, {example}, {answer} and {shell_examples}; or an empty text",
    "models": "a list of at most 20 names",
}
"""The tunables, and what each may be."""
EDGE_TUNABLES = tuple(GENOME_RULES)
"""Those that an edge uses."""
AGENT_TUNABLES = tuple(name for name in GENOME_RULES if name != "concurrency")
"""Those that an agent of the orchestrator uses."""
_VERSION = ("version", "restored")


def with_notes(prompt: str, notes: Sequence[str]) -> str:
    """Instructions with the notes of a genome, one line each."""
    if not notes:
        return prompt
    lines = (f"- {' '.join(note.split())}" for note in notes)
    return "\n".join((*filter(None, (prompt,)), "Notes from earlier runs:", *lines))
