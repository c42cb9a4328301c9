"""Repairs the descriptions of tools from recorded calls whose arguments did not fit.

One proposal is made without a model: the words of the errors, and a later call of the same tool
that succeeded, as an example. If the reflecting model answers, another one is its description.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from evoclaw.core.events import CallFinished, CallStarted, Replied, RunStarted
from evoclaw.core.genome import Genome, ToolText
from evoclaw.core.messages import JSON, ErrorKind, Finish, ToolCall, label_of
from evoclaw.core.tools import Tool
from evoclaw.evolution.proposals import Proposal, ProposerContext, RunTrace
from evoclaw.evolution.proposers.reflection import answered_text, ask_model, data_lines, with_texts
from evoclaw.evolution.proposers.train_scores import Comparison, TrainScores, best_first, patched

MIN_ERRORS = 2
"""Of one tool: a single error is no pattern."""
MAX_TOOLS = 5
"""That are repaired at a time, those with the most errors."""
MAX_PROBLEMS, MAX_PROBLEM_CHARS = 3, 200
MAX_NEW_EXAMPLES, MAX_EXAMPLES = 2, 10
MAX_EXAMPLE_CHARS, MAX_VALUE_CHARS = 500, 80
MAX_DESCRIPTION_CHARS = 4_000
_ERRORS_HEAD = "Calls were refused: "
_TASK = """You improve the description of a tool that a language model calls. Calls of it were
refused because their arguments did not fit. Write a description with which a model that sees only
the description and the schema gets the arguments right. Keep what the tool does; add no promise
about it and no instruction about anything else. At most {limit} characters.

The tool {name} has this description:
{description}

Its schema:
{schema}

{data}

Answer with the new description between <description> and </description>."""


class RefusedArguments(Struct, frozen=True, kw_only=True):
    """A recorded call whose arguments did not fit, and what came of it."""

    tool: str
    run: str
    problem: str
    """What was wrong, in the words of the error."""
    arguments: str
    """As the model wrote them."""
    worked: dict[str, JSON] | None
    """The arguments of the next call of the tool in that run that succeeded."""
    untrusted: bool
    """Whether the model had read text of untrusted origin before."""


class DescriptionRepair:
    """Proposes descriptions and examples of tools whose calls were refused."""

    name = "descriptions"

    async def propose(self, context: ProposerContext) -> AsyncIterator[Proposal]:
        """The repairs that do better on the train cases, the best first."""
        for proposal in await best_first(context, self._search):
            yield proposal

    async def _search(
        self, context: ProposerContext, found: list[tuple[Proposal, Comparison]]
    ) -> None:
        scores = TrainScores(context)
        for tool, errors in _most_refused(context):
            clean = [error for error in errors if not error.untrusted]
            refused = clean if len(clean) >= MIN_ERRORS else errors
            runs = tuple(dict.fromkeys(error.run for error in refused))
            is_untrusted = any(error.untrusted for error in refused)
            for text, how in (
                (_with_examples(tool, context.genome, refused), "words and examples of the record"),
                (await _rewritten(context, tool, refused), "a rewritten description"),
            ):
                patch: dict[str, JSON] = {"tools": {tool.name: text}}
                genome = patched(context, patch) if text else None
                if genome is None:
                    continue
                result = await scores.compare(genome, screen=False)
                if result is None or not result.is_better:
                    continue
                reason = (
                    f"{tool.name}: {len(refused)} calls had arguments that did not fit; {how}: "
                    f"{result.words()}"
                )
                proposal = Proposal(
                    patch=patch, reason=reason, runs=runs, untrusted=is_untrusted,
                    fixed=result.fixed, broken=result.broken,
                )  # fmt: skip
                found.append((proposal, result))


def refused_arguments(trace: RunTrace) -> list[RefusedArguments]:
    """The calls of a run whose arguments did not fit, in order."""
    asked: dict[str, ToolCall] = {}
    started: dict[str, CallStarted] = {}
    found: list[RefusedArguments] = []
    is_untrusted = False
    for record in trace.records:
        event = record.event
        if isinstance(event, RunStarted):
            is_untrusted = any(label_of(message).untrusted for message in event.messages)
        elif isinstance(event, Replied) and event.reply.finish is not Finish.LENGTH:
            asked |= {call.id: call for call in event.reply.calls}
        elif isinstance(event, CallStarted):
            started[event.call_id] = event
        elif isinstance(event, CallFinished):
            result = event.result
            call, ran = asked.get(result.call_id), started.get(result.call_id)
            if result.error is ErrorKind.INVALID_PARAMS and call is not None:
                # The words of a tool that ran are its own; those of the schema are ours.
                problem = _problem(result.text)
                error = RefusedArguments(
                    tool=call.name, run=trace.run, problem=problem, arguments=call.arguments,
                    worked=None, untrusted=is_untrusted or ran is not None,
                )  # fmt: skip
                found.append(error)
            elif result.error is None and ran is not None:
                found = [_repaired(error, ran, is_untrusted) for error in found]
            is_untrusted = is_untrusted or ran is not None
    return found


def _repaired(error: RefusedArguments, ran: CallStarted, is_untrusted: bool) -> RefusedArguments:
    if error.worked is not None or error.tool != ran.name:
        return error
    return msgspec.structs.replace(
        error, worked=ran.arguments, untrusted=error.untrusted or is_untrusted
    )


def _problem(text: str) -> str:
    """What was wrong, without the tool's name and the list of its parameters."""
    line = " ".join(text.partition("\n")[0].split())
    return line.partition("': ")[2][:MAX_PROBLEM_CHARS] or line[:MAX_PROBLEM_CHARS]


def _most_refused(context: ProposerContext) -> list[tuple[Tool, list[RefusedArguments]]]:
    tools = {tool.name: tool for tool in context.tools}
    by_tool: dict[str, list[RefusedArguments]] = {}
    for trace in context.traces:
        for error in refused_arguments(trace):
            if error.tool in tools:
                by_tool.setdefault(error.tool, []).append(error)
    often = [(tools[name], errors) for name, errors in by_tool.items() if len(errors) >= MIN_ERRORS]
    return sorted(often, key=lambda pair: -len(pair[1]))[:MAX_TOOLS]


def _with_examples(
    tool: Tool, genome: Genome, refused: Sequence[RefusedArguments]
) -> dict[str, JSON]:
    """The description with the commonest errors, and calls that succeeded as examples.

    Empty if there is nothing to add.
    """
    now = genome.tools.get(tool.name, ToolText())
    description = now.description or tool.description
    worked = dict.fromkeys(_example(error.worked) for error in refused if error.worked is not None)
    new = [text for text in worked if text and text not in now.examples][:MAX_NEW_EXAMPLES]
    common = Counter(error.problem for error in refused).most_common(MAX_PROBLEMS)
    words = _ERRORS_HEAD + "; ".join(problem.rstrip(".") for problem, _ in common) + "."
    kept = [line for line in description.split("\n") if not line.startswith(_ERRORS_HEAD)]
    repaired = "\n".join((*kept, words))
    if not new and repaired == description:
        return {}
    examples = [*now.examples, *new][-MAX_EXAMPLES:]
    return {"description": repaired, "examples": examples}


def _example(arguments: Mapping[str, JSON]) -> str:
    """The arguments as JSON; empty if they are too long even when their texts are cut."""
    text = msgspec.json.encode(with_texts(dict(arguments), _cut)).decode()
    return text if len(text) <= MAX_EXAMPLE_CHARS else ""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"


async def _rewritten(
    context: ProposerContext, tool: Tool, refused: Iterable[RefusedArguments]
) -> dict[str, JSON]:
    """A description by the reflecting model; empty if it gives none."""
    shown: list[dict[str, JSON]] = [
        {"arguments": error.arguments, "problem": error.problem, "worked later": error.worked}
        for error in refused
    ]
    now = context.genome.tools.get(tool.name, ToolText())
    prompt = _TASK.format(
        limit=MAX_DESCRIPTION_CHARS,
        name=tool.name,
        description=now.description or tool.description,
        schema=msgspec.json.encode(tool.parameters).decode(),
        data=data_lines(shown),
    )
    text = answered_text(await ask_model(context, prompt), "description", MAX_DESCRIPTION_CHARS)
    return {"description": text} if text else {}
