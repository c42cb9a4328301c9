"""Agents as they are written down in `[[agents]]`, and the agents that become of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeAlias

from msgspec import UNSET, Meta, Struct
from msgspec.structs import asdict, replace

from evoclaw.core.agent import ITERATIVE, Agent, Field, FieldType, LoopSettings, narrowed
from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.tools import ALL
from evoclaw.governance.autonomy import Level
from evoclaw.governance.budget.settings import BudgetSettings, Kinds

DEFAULT = "evoclaw"
"""Who answers when nobody else was defined."""
MOST_NAMES = 100
"""Entries of one list of a definition."""
MOST_PROBLEMS = 20
"""Wrong inputs that are told of at once."""

Word: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Line: TypeAlias = Annotated[str, Meta(max_length=500)]
Sentence: TypeAlias = Annotated[str, Meta(min_length=1, max_length=2_000)]
Words: TypeAlias = Annotated[tuple[Word, ...], Meta(max_length=MOST_NAMES)]
_Few: TypeAlias = Annotated[int, Meta(ge=1, le=100)]


class AgentLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The numbers that bound an agent's runs; what is left out is as for every agent."""

    max_turns: _Few | None = None
    """Replies with calls."""
    max_seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    """Of time."""
    max_calls_per_turn: _Few | None = None
    """Calls of one reply; the rest must be asked for again."""
    max_parallel: _Few | None = None
    """Calls side by side."""
    tool_error_limit: _Few | None = None
    """Failed turns in a row."""
    repeat_limit: Annotated[int, Meta(ge=2, le=100)] | None = None
    """The same calls in a row."""
    max_result_chars: Annotated[int, Meta(ge=1_000, le=1_000_000)] | None = None
    """Characters of one result that the model sees."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """How freely the model chooses its words."""
    max_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Of one reply."""


class AgentConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent of `[[agents]]`."""

    id: str
    """By which it is asked."""
    name: Line = ""
    """What people call it."""
    description: Line = ""
    """What it is for, in a line; other agents read it too."""
    model: str | Words = ""
    """A list falls back on the next; none is the one that the process has."""
    prompt: str = ""
    """Its own instructions, added to what every agent is told."""
    prompt_file: Path | None = None
    """Where they are, instead."""
    capabilities: frozenset[Word] = frozenset()
    """Permissions it holds: none means no tools, `*` all."""
    autonomy: Level | None = None
    """How much it may do by itself; supervised if not given."""
    skills: Words = ()
    """Skills that are active from the start."""
    tools: Words | None = None
    """The tools it may use, by name; all that its capabilities allow if not given."""
    on: str = ""
    """The edge that its tools run on; `any` is whichever has them, `*` asks each by its name."""
    limits: AgentLimits = AgentLimits()
    budget: Kinds = Kinds()
    """What one of its runs may use at most; it never widens `[budget]`."""
    inputs: dict[str, Field] = {}
    """What it is asked with: name, then `type`, `description`, `required`."""
    outputs: dict[str, Field] = {}
    """The fields of its answer."""
    constraints: Annotated[tuple[Sentence, ...], Meta(max_length=MOST_NAMES)] = ()
    """Rules it is told to keep, a sentence each. What is enforced is for policies to say."""
    spec_capabilities: Words = ()
    """What it is good for, in the words of a catalogue of your own; they grant nothing."""
    dependencies: Words = ()
    """Agents that it works with, by their ids."""
    owner: Line = ""
    """Who answers for it."""


class Tools(Protocol):
    """What holds for the tools of all agents."""

    @property
    def granted(self) -> frozenset[str] | None:
        """What any agent may hold at most; None is no such limit."""
        ...


class Driven(Protocol):
    """What holds for all runs."""

    @property
    def tool_loop_enabled(self) -> bool:
        """False is no tools, for nobody."""
        ...

    @property
    def max_tool_iterations(self) -> int:
        """Turns of an agent that does not say."""
        ...

    @property
    def tool_error_limit(self) -> int:
        """Failed turns in a row."""
        ...

    @property
    def evidence(self) -> bool:
        """Whether an answer must cite receipts."""
        ...

    @property
    def tools(self) -> Tools:
        """Of the tools."""
        ...


class Defined(Protocol):
    """The settings that agents are made from; `EvoClawConfig` is one."""

    @property
    def orchestrator(self) -> Driven:
        """What holds for all of them."""
        ...

    @property
    def agents(self) -> Sequence[AgentConfig]:
        """Those that were written down."""
        ...


class Problem(Struct, frozen=True):
    """What is wrong with one input."""

    field: str
    problem: str


class BadInputs(EvoClawError):
    """An agent was asked with other inputs than it takes."""

    def __init__(self, agent: str, problems: Sequence[Problem]) -> None:
        told = "; ".join(f"{one.field}: {one.problem}" for one in problems)
        super().__init__(f"agent {agent!r} cannot be asked so: {told}")
        self.agent, self.problems = agent, tuple(problems)


def agents_of(
    config: Defined, *, model: str = "", capabilities: frozenset[str] = frozenset({ALL})
) -> Mapping[str, Agent]:
    """The agents there are, by id, the first one the default; `evoclaw` if none was defined.

    Args:
        config: What was written down.
        model: Of those that name none; left to whoever gives them a provider if empty.
        capabilities: What `evoclaw` holds where nobody was defined.
    """
    defined = config.agents or (AgentConfig(id=DEFAULT, capabilities=capabilities),)
    return {one.id: _agent(one, config.orchestrator, model) for one in defined}


def default_of(agents: Mapping[str, Agent]) -> str:
    """Who is asked where nobody is named: the first."""
    return next(iter(agents), DEFAULT)


def level_of(agent: Agent, usual: Level = Level.SUPERVISED, most: Level = Level.FULL) -> Level:
    """How much an agent may do by itself.

    Args:
        agent: Who.
        usual: For one that does not say.
        most: What the process allows anybody.
    """
    order = list(Level)
    wanted = Level(agent.autonomy) if agent.autonomy else usual
    return min(wanted, most, key=order.index)


def budget_of(agent: Agent, usual: BudgetSettings) -> BudgetSettings:
    """The budget of an agent's run: of each kind the smaller of its own and the usual."""
    smaller: dict[str, Any] = {}
    for kind, most in agent.budget.items():
        bound: float | None = getattr(usual, kind)
        smaller[kind] = most if bound is None else min(most, bound)
    return replace(usual, **smaller) if smaller else usual


def iterative(agent: Agent) -> LoopSettings:
    """The limits of `invoke_iterative`: the agent's own, and the usual turns if it says none."""
    settings = agent.settings
    unsaid = settings.max_turns == LoopSettings().max_turns
    turns = ITERATIVE.max_turns if unsaid else settings.max_turns
    return replace(settings, max_turns=turns, confirm=ITERATIVE.confirm)


def check_inputs(agent: Agent, inputs: Mapping[str, JSON]) -> tuple[Problem, ...]:
    """What is wrong with the inputs; nothing is where the agent does not say what it takes."""
    if not agent.inputs:
        return ()
    problems = [
        Problem(name, "is missing; it is required")
        for name, field in agent.inputs.items()
        if field.required and inputs.get(name) is None
    ]
    for name, value in inputs.items():
        field = agent.inputs.get(name)
        if field is None:
            there = ", ".join(agent.inputs)
            problems.append(Problem(name[:200], f"is not known; there are: {there}"))
        elif value is not None and not _fits(value, field.type):
            problems.append(Problem(name, f"must be of type {field.type}"))
    return tuple(problems[:MOST_PROBLEMS])


def require_inputs(agent: Agent, inputs: Mapping[str, JSON]) -> None:
    """Raise `BadInputs` if an agent cannot be asked with these."""
    if problems := check_inputs(agent, inputs):
        raise BadInputs(agent.name, problems)


def _fits(value: JSON, kind: FieldType) -> bool:
    truth = isinstance(value, bool)  # which Python takes for a number
    match kind:
        case FieldType.STRING:
            return isinstance(value, str)
        case FieldType.INTEGER:
            whole = isinstance(value, float) and value.is_integer()
            return (isinstance(value, int) or whole) and not truth
        case FieldType.NUMBER:
            return isinstance(value, int | float) and not truth
        case FieldType.BOOLEAN:
            return truth
        case FieldType.OBJECT:
            return is_object(value)
        case FieldType.ARRAY:
            return is_array(value)
        case FieldType.ANY:
            return True


def _agent(defined: AgentConfig, usual: Driven, model: str) -> Agent:
    models = (defined.model,) if isinstance(defined.model, str) else defined.model
    return Agent(
        defined.id,
        ",".join(filter(None, models)) or model,
        defined.prompt.strip(),
        _held(defined.capabilities, usual),
        _settings(defined, usual),
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
    )


def _held(wanted: frozenset[str], usual: Driven) -> frozenset[str]:
    """The most that anybody may hold caps what one was given; without the tool loop, nothing."""
    if not usual.tool_loop_enabled:
        return frozenset()
    most = usual.tools.granted
    return wanted if most is None else narrowed(wanted, most)


def _settings(defined: AgentConfig, usual: Driven) -> LoopSettings:
    said = {name: value for name, value in asdict(defined.limits).items() if value is not None}
    general: dict[str, Any] = {
        "max_turns": usual.max_tool_iterations,
        "tool_error_limit": usual.tool_error_limit,
        "output_fields": tuple(defined.outputs),
        "evidence": usual.evidence or UNSET,
    }
    return replace(LoopSettings(), **(general | said))


def _budget(kinds: Kinds) -> dict[str, float]:
    return {
        kind: most for kind, most in asdict(kinds).items() if kind != "per" and most is not None
    }
