"""An agent's definition, and the numbers that bound its runs."""

from __future__ import annotations

from enum import StrEnum

from msgspec import UNSET, Struct, UnsetType

from evoclaw.core.evolution_settings import AgentEvolution
from evoclaw.core.genome import CONFIGURED, Genome
from evoclaw.core.tools import ALL_PERMISSIONS


class LoopSettings(Struct, frozen=True):
    """The limits of one run. Recorded in full: a default that changes later changes no old run."""

    max_turns: int = 10
    """Turns with calls before the model must give its closing reply; 20 for the iterative API."""
    max_calls_per_turn: int = 5
    """Calls that are run in one turn; the model may request the others again."""
    max_parallel: int = 5
    """Calls that run at the same time."""
    tool_error_limit: int = 3
    """Failed turns in a row after which the run ends."""
    repeat_limit: int = 3
    """How often the same set of calls may repeat in a row, or the same call be denied in all."""
    max_seconds: float = 3600.0
    """Duration of a run."""
    max_result_chars: int = 64_000
    """Characters of one result that the model sees; a longer one is cut in the middle."""
    temperature: float | None = None
    """The sampling temperature; default: that of the model."""
    max_tokens: int | None = None
    """Tokens of one reply; default: that of the model."""
    confirm: bool = False
    """Answer the first text-only reply with the checklist of double confirmation."""
    confirm_limit: int = 2
    """How often the model is asked to confirm."""
    confirm_without_tools: bool = True
    """Confirm also when no tool was used."""
    output_fields: tuple[str, ...] = ()
    """Names of the output's fields; plain text becomes the first of them, or `result`."""
    evidence: bool | UnsetType = UNSET
    """Reject an answer that does not cite the receipts of what was done. Recorded only if set:
    older recordings stay the same to the byte."""
    max_call_seconds: float | UnsetType = UNSET
    """The longest timeout of one call, but of calls that wait for people or other runs; unset: that
    of the tool. Recorded only if set."""
    tool_prompt: str | UnsetType = UNSET
    """What tells a model without native calls its tools; unset: the text of its provider. Recorded
    only if set."""
    model_retries: int | UnsetType = UNSET
    """How often a failed request to the model's server is repeated, at most as often as configured;
    unset: as configured. Recorded only if set."""
    genome: str | UnsetType = UNSET
    """The digest of the agent's genome. Recorded only if it sets something."""


ITERATIVE_SETTINGS = LoopSettings(max_turns=20, confirm=True)
"""The defaults of `invoke_iterative`."""


ANY_EDGE, EVERY_EDGE = "any", "*"
"""Instead of an edge id: any edge that has the tool; or every edge, chosen by the model."""


class FieldType(StrEnum):
    """The type of an input or output, as JSON Schema names it."""

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
    """The type of the value."""
    description: str = ""
    """What the value means."""
    required: bool = False
    """Whether the value must be given."""


class Agent(Struct, frozen=True, omit_defaults=True):
    """The definition of an agent: a name, a model, a prompt, and what it may do."""

    name: str
    """The name that callers use."""
    model: str
    """`A,B` falls back to B; empty is the default model of the process."""
    prompt: str = ""
    """Its instructions."""
    capabilities: frozenset[str] = frozenset()
    """The permissions it holds; none means no tools, `"*"` all."""
    settings: LoopSettings = LoopSettings()
    """The limits of its loop."""
    title: str = ""
    """The name shown to people."""
    description: str = ""
    """Its purpose, in one line."""
    autonomy: str = ""
    """What it may do without approval: `read_only`, `supervised` or `full`; empty: the default."""
    tools: frozenset[str] | None = None
    """The names of the tools it may use; None: all that its capabilities allow."""
    skills: tuple[str, ...] = ()
    """Skills that are active from the start."""
    on: str = ""
    """The only edge that its tools run on; `any`: any edge that has the tool; `*`: each edge by
    name; empty: the edge of the session."""
    inputs: dict[str, Field] = {}
    """Its inputs; none means that any input is accepted."""
    outputs: dict[str, Field] = {}
    """The fields of its answer."""
    budget: dict[str, float] = {}
    """The budget of a run, with the keys of `[budget]`; it can only lower the configured one."""
    constraints: tuple[str, ...] = ()
    """Rules in its prompt, one sentence each. Policies, not these, are enforced."""
    spec_capabilities: tuple[str, ...] = ()
    """Its skills in the words of its maker's catalogue; they grant no permission."""
    dependencies: tuple[str, ...] = ()
    """The agents that it works with."""
    owner: str = ""
    """The person or team responsible for it."""
    trusts_system_messages: bool = True
    """Whether a program's system messages are instructions, or text of outsiders."""
    genome: Genome = CONFIGURED
    """What it is tuned with; the fields above have its prompt, limits and models already."""
    evolution: AgentEvolution = AgentEvolution()
    """How its genome evolves."""

    @property
    def names_edge(self) -> bool:
        """Whether it works on one edge only, which its definition names."""
        return self.on not in ("", ANY_EDGE, EVERY_EDGE)


def intersect_capabilities(wanted: frozenset[str], held: frozenset[str]) -> frozenset[str]:
    """The wanted capabilities that are also held."""
    if ALL_PERMISSIONS in held:
        return wanted
    return held if ALL_PERMISSIONS in wanted else wanted & held
