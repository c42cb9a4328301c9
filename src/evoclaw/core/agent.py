"""An agent's definition, and the numbers that bound its runs."""

from __future__ import annotations

from enum import StrEnum

from msgspec import UNSET, Struct, UnsetType

from evoclaw.core.tools import ALL


class LoopSettings(Struct, frozen=True):
    """The limits of one run. Recorded in full: a default that changes later changes no old run."""

    max_turns: int = 10
    """Replies with calls before a closing reply is asked for; 20 for the iterative API."""
    max_calls_per_turn: int = 5
    max_parallel: int = 5
    tool_error_limit: int = 3
    """Failed turns in a row."""
    repeat_limit: int = 3
    """The same set of calls in a row, or the same denied call in all."""
    max_seconds: float = 3600.0
    max_result_chars: int = 64_000
    """What the model sees of one result; head and tail beyond that."""
    temperature: float | None = None
    max_tokens: int | None = None
    confirm: bool = False
    """Answer the first text-only reply with the checklist of double confirmation."""
    confirm_limit: int = 2
    confirm_without_tools: bool = True
    """Confirm also when no tool was used."""
    output_fields: tuple[str, ...] = ()
    """Names of the output's fields; plain text goes under the first, or under `result`."""
    evidence: bool | UnsetType = UNSET
    """Send an answer back that does not cite the receipts of what was done. Not recorded where it
    was not said: older recordings stay the same to the byte."""


ITERATIVE = LoopSettings(max_turns=20, confirm=True)
"""The defaults of `invoke_iterative`."""


class FieldType(StrEnum):
    """What kind of value an input or output holds; the words of JSON Schema."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    OBJECT = "object"
    ARRAY = "array"
    ANY = "any"


class Field(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One input or output of an agent."""

    type: FieldType = FieldType.STRING
    description: str = ""
    required: bool = False


class Agent(Struct, frozen=True, omit_defaults=True):
    """Who answers: a name, a model, a prompt, and what it may do."""

    name: str
    model: str
    """`A,B` falls back on B; empty is the one that the process has."""
    prompt: str = ""
    capabilities: frozenset[str] = frozenset()
    """Permissions it holds; none means no tools, `"*"` all."""
    settings: LoopSettings = LoopSettings()
    title: str = ""
    """What people call it."""
    description: str = ""
    """What it is for, in a line."""
    autonomy: str = ""
    """How much it may do by itself: `read_only`, `supervised` or `full`; empty is not said."""
    tools: frozenset[str] | None = None
    """The tools it may use by name; None is all that its capabilities allow."""
    skills: tuple[str, ...] = ()
    """Skills that are active from the start."""
    on: str = ""
    """The edge that its tools run on; `any` is whichever has them, `*` asks each by its name."""
    inputs: dict[str, Field] = {}
    """What it is asked with; none means that anything will do."""
    outputs: dict[str, Field] = {}
    budget: dict[str, float] = {}
    """What a run may use at most, by the words of `[budget]`; it never widens that."""
    constraints: tuple[str, ...] = ()
    """Rules it is told to keep, a sentence each. What is enforced is for policies to say."""
    spec_capabilities: tuple[str, ...] = ()
    """What it is good for, in the words of its makers' catalogue; they grant nothing."""
    dependencies: tuple[str, ...] = ()
    """Agents that it works with."""
    owner: str = ""
    """Who answers for it."""


def narrowed(wanted: frozenset[str], held: frozenset[str]) -> frozenset[str]:
    """Of the capabilities wanted, those that are held."""
    if ALL in held:
        return wanted
    return held if ALL in wanted else wanted & held
