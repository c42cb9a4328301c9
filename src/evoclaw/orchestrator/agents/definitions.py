"""The agent definitions of `[[agents]]`, and the agents that are built from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct
from msgspec.structs import asdict, replace

from evoclaw.core.agent import (
    ITERATIVE_SETTINGS,
    Agent,
    Field,
    FieldType,
    LoopSettings,
    intersect_capabilities,
)
from evoclaw.core.errors import EvoClawError
from evoclaw.core.evolution_settings import AgentEvolution
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.tools import ALL_PERMISSIONS
from evoclaw.governance.autonomy import Level
from evoclaw.governance.budget.settings import AccountLimits, BudgetSettings

DEFAULT_AGENT = "evoclaw"
"""The agent that exists if none is defined."""
MAX_LIST_ENTRIES = 100
"""Of one list in a definition."""
MAX_REPORTED_PROBLEMS = 20
"""Invalid inputs in one error."""

Word: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Line: TypeAlias = Annotated[str, Meta(max_length=500)]
Sentence: TypeAlias = Annotated[str, Meta(min_length=1, max_length=2_000)]
Words: TypeAlias = Annotated[tuple[Word, ...], Meta(max_length=MAX_LIST_ENTRIES)]
_CountTo100: TypeAlias = Annotated[int, Meta(ge=1, le=100)]


class AgentLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of an agent's runs; those left out have the general defaults."""

    max_turns: _CountTo100 | None = None
    """Replies of the model with calls."""
    max_seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    """Duration of a run."""
    max_call_seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    """Duration of one call; by default the timeout of its tool."""
    max_calls_per_turn: _CountTo100 | None = None
    """Calls in one reply; further calls are refused, and the model may request them again."""
    max_parallel: _CountTo100 | None = None
    """Calls at the same time."""
    tool_error_limit: _CountTo100 | None = None
    """Failed turns in a row that end a run."""
    repeat_limit: Annotated[int, Meta(ge=2, le=100)] | None = None
    """Turns in a row with the same calls that end a run."""
    max_result_chars: Annotated[int, Meta(ge=1_000, le=1_000_000)] | None = None
    """Characters of one result that the model sees."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """The sampling temperature of the model."""
    max_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Tokens of one reply."""


class AgentConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent of `[[agents]]`."""

    id: str
    """The name that callers use."""
    name: Line = ""
    """Its display name."""
    description: Line = ""
    """What it is for, in one line; other agents read it too."""
    model: str | Words = ""
    """The model, or a list of models with fallbacks; by default the process's model."""
    prompt: str = ""
    """Its own instructions, added to the general ones."""
    prompt_file: Path | None = None
    """A file with the instructions, instead of `prompt`."""
    capabilities: frozenset[Word] = frozenset()
    """The permissions it holds: none is no tools, `*` is all."""
    autonomy: Level | None = None
    """How much it may do without approval; by default `supervised`."""
    skills: Words = ()
    """Skills that are active from the start."""
    tools: Words | None = None
    """The tools it may use, by name; by default all that its capabilities allow."""
    on: str = ""
    """The only edge its tools run on; `any`: an edge that has the tool; `*`: the tool `edge_call`;
    by default the edge of the session, which is that of `evoclaw up` unless the user names one."""
    limits: AgentLimits = AgentLimits()
    budget: AccountLimits = AccountLimits()
    """The budget of one run; it never exceeds `[budget]`."""
    inputs: dict[str, Field] = {}
    """The inputs it takes, by name: `type`, `description`, `required`."""
    outputs: dict[str, Field] = {}
    """The fields of its answer."""
    constraints: Annotated[tuple[Sentence, ...], Meta(max_length=MAX_LIST_ENTRIES)] = ()
    """Rules in its prompt, one sentence each; only policies are enforced."""
    spec_capabilities: Words = ()
    """Capabilities in the terms of your own catalogue; they grant nothing."""
    dependencies: Words = ()
    """The ids of agents that it works with."""
    owner: Line = ""
    """Who is responsible for it."""
    system_messages: Literal["trusted", "untrusted"] = "trusted"
    """System messages that programs send with a conversation: `trusted` ones are instructions;
    `untrusted` ones count as text of outsiders, so that a call that acts may need an approval."""
    evolution: AgentEvolution = AgentEvolution()


class RunDefaults(Struct, frozen=True, kw_only=True):
    """What applies to the runs of all agents."""

    tool_loop_enabled: bool = True
    """Whether any agent has tools."""
    max_tool_iterations: int = 10
    """The turns of an agent without its own limit."""
    tool_error_limit: int = 3
    """Failed turns in a row that end a run."""
    evidence: bool = False
    """Whether an answer must cite receipts."""
    granted: frozenset[str] | None = None
    """The capabilities that an agent may have at most; None is no limit."""
    default_agent: bool = True
    """Whether the agent `evoclaw` exists although others are defined."""


class InputProblem(Struct, frozen=True):
    """A problem with one input."""

    field: str
    problem: str


class InvalidAgentInputs(EvoClawError):
    """The inputs of a request do not fit the agent's definition."""

    def __init__(self, agent: str, problems: Sequence[InputProblem]) -> None:
        reasons = "; ".join(f"{problem.field}: {problem.problem}" for problem in problems)
        super().__init__(f"invalid inputs for agent {agent!r}: {reasons}")
        self.agent, self.problems = agent, tuple(problems)


def agents_of(
    defined: Sequence[AgentConfig],
    defaults: RunDefaults,
    *,
    model: str = "",
    capabilities: frozenset[str] = frozenset({ALL_PERMISSIONS}),
) -> Mapping[str, Agent]:
    """Build all agents, by id; the first is the default. `evoclaw` is the last, or the only one.

    Args:
        defined: Their definitions.
        defaults: What applies to all of them.
        model: The model of agents that name none; if empty, they get one with their provider.
        capabilities: Of `evoclaw`, if it is not defined.
    """
    is_defined = any(agent.id == DEFAULT_AGENT for agent in defined)
    if not defined or (defaults.default_agent and not is_defined):
        defined = (*defined, AgentConfig(id=DEFAULT_AGENT, capabilities=capabilities))
    return {agent.id: _agent(agent, defaults, model) for agent in defined}


def default_of(agents: Mapping[str, Agent]) -> str:
    """The agent of requests that name none: the first."""
    return next(iter(agents), DEFAULT_AGENT)


def level_of(agent: Agent, default: Level = Level.SUPERVISED, maximum: Level = Level.FULL) -> Level:
    """How much an agent may do without approval.

    Args:
        agent: The agent.
        default: For an agent that does not define a level.
        maximum: The highest level that the process allows.
    """
    order = list(Level)
    level = Level(agent.autonomy) if agent.autonomy else default
    return min(level, maximum, key=order.index)


def budget_of(agent: Agent, default: BudgetSettings) -> BudgetSettings:
    """The budget of an agent's run: for each kind the smaller of its own and the default."""
    smaller: dict[str, Any] = {}
    for kind, limit in agent.budget.items():
        bound: float | None = getattr(default, kind)
        smaller[kind] = limit if bound is None else min(limit, bound)
    return replace(default, **smaller) if smaller else default


def iterative_settings(agent: Agent) -> LoopSettings:
    """The settings of `invoke_iterative`: the agent's own, with more turns if it sets none."""
    settings = agent.settings
    is_default = settings.max_turns == LoopSettings().max_turns
    turns = ITERATIVE_SETTINGS.max_turns if is_default else settings.max_turns
    return replace(settings, max_turns=turns, confirm=ITERATIVE_SETTINGS.confirm)


def check_inputs(agent: Agent, inputs: Mapping[str, JSON]) -> tuple[InputProblem, ...]:
    """The problems of some inputs; none if the agent does not define its inputs."""
    if not agent.inputs:
        return ()
    problems = [
        InputProblem(name, "is missing; it is required")
        for name, field in agent.inputs.items()
        if field.required and inputs.get(name) is None
    ]
    for name, value in inputs.items():
        field = agent.inputs.get(name)
        if field is None:
            known = ", ".join(agent.inputs)
            problems.append(InputProblem(name[:200], f"is unknown; known inputs: {known}"))
        elif value is not None and not _has_type(value, field.type):
            problems.append(InputProblem(name, f"must be of type {field.type}"))
    return tuple(problems[:MAX_REPORTED_PROBLEMS])


def require_inputs(agent: Agent, inputs: Mapping[str, JSON]) -> None:
    """Raise `InvalidAgentInputs` if inputs do not fit an agent."""
    if problems := check_inputs(agent, inputs):
        raise InvalidAgentInputs(agent.name, problems)


def _has_type(value: JSON, kind: FieldType) -> bool:
    is_boolean = isinstance(value, bool)  # a bool is an int in Python
    match kind:
        case FieldType.STRING:
            return isinstance(value, str)
        case FieldType.INTEGER:
            is_whole = isinstance(value, float) and value.is_integer()
            return (isinstance(value, int) or is_whole) and not is_boolean
        case FieldType.NUMBER:
            return isinstance(value, int | float) and not is_boolean
        case FieldType.BOOLEAN:
            return is_boolean
        case FieldType.OBJECT:
            return is_object(value)
        case FieldType.ARRAY:
            return is_array(value)
        case FieldType.ANY:
            return True


def _agent(defined: AgentConfig, defaults: RunDefaults, model: str) -> Agent:
    models = (defined.model,) if isinstance(defined.model, str) else defined.model
    return Agent(
        defined.id,
        ",".join(filter(None, models)) or model,
        defined.prompt.strip(),
        _allowed_capabilities(defined.capabilities, defaults),
        _settings(defined, defaults),
        title=defined.name,
        description=defined.description,
        autonomy="" if defined.autonomy is None else str(defined.autonomy),
        tools=None if defined.tools is None else frozenset(defined.tools),
        skills=defined.skills,
        on=defined.on,
        inputs=defined.inputs,
        outputs=defined.outputs,
        budget=_budget(defined.budget),
        constraints=defined.constraints,
        spec_capabilities=defined.spec_capabilities,
        dependencies=defined.dependencies,
        owner=defined.owner,
        trusts_system_messages=defined.system_messages == "trusted",
        evolution=defined.evolution,
    )


def _allowed_capabilities(wanted: frozenset[str], defaults: RunDefaults) -> frozenset[str]:
    """An agent's capabilities within the general limit; none without the tool loop."""
    if not defaults.tool_loop_enabled:
        return frozenset()
    limit = defaults.granted
    return wanted if limit is None else intersect_capabilities(wanted, limit)


def _settings(defined: AgentConfig, defaults: RunDefaults) -> LoopSettings:
    own = {name: value for name, value in asdict(defined.limits).items() if value is not None}
    general: dict[str, Any] = {
        "max_turns": defaults.max_tool_iterations,
        "tool_error_limit": defaults.tool_error_limit,
        "output_fields": tuple(defined.outputs),
        "evidence": defaults.evidence or UNSET,
    }
    return replace(LoopSettings(), **(general | own))


def _budget(kinds: AccountLimits) -> dict[str, float]:
    return {
        kind: limit for kind, limit in asdict(kinds).items() if kind != "per" and limit is not None
    }
