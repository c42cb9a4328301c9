"""Compare two recorded runs, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import msgspec
from msgspec import Struct

from evoclaw.core.events import CallFinished, Prompted, Record, Replied, RunFinished, RunStarted
from evoclaw.core.messages import JSON, Reply, ToolResult


class RecordedTurn(Struct):
    """One recorded reply and the results of its calls."""

    reply: Reply
    results: dict[str, ToolResult] = {}
    prompts: tuple[str, ...] = ()
    """The texts of the user messages before the reply, from a person or the loop."""


class Difference(Struct, frozen=True):
    """One difference between two runs."""

    turn: int
    """0 for the run as a whole."""
    what: str
    """What differs, such as `reply` or `result`."""
    a: JSON
    """The value in the first run."""
    b: JSON
    """The value in the second run."""


def compare(a: Sequence[Record], b: Sequence[Record]) -> Iterator[Difference]:
    """Yield the differences of the run as a whole, then of each turn; ids and times are ignored."""
    yield from _differences(0, _run_facts(a), _run_facts(b))
    for number, (left, right) in enumerate(zip_longest(turns(a), turns(b)), 1):
        yield from _differences(number, _turn_facts(left), _turn_facts(right))


def turns(records: Sequence[Record]) -> list[RecordedTurn]:
    """The turns of a recording."""
    found: list[RecordedTurn] = []
    prompts: list[str] = []
    for record in records:
        match record.event:
            case Prompted(message):
                prompts.append(message.text)
            case Replied(reply):
                found.append(RecordedTurn(reply, {}, tuple(prompts)))
                prompts = []
            case CallFinished(result) if found:
                found[-1].results[result.call_id] = result
            case _:
                pass
    return found


def _run_facts(records: Sequence[Record]) -> dict[str, JSON]:
    facts: dict[str, JSON] = {"turns": len(turns(records))}
    for record in records:
        match record.event:
            case RunStarted(model, messages):
                facts["model"] = model
                facts["opening"] = [message.text for message in messages]
            case RunFinished(stop, text, usage=usage, cost=cost):
                facts |= {"stop": str(stop), "answer": text, "cost": cost}
                facts["tokens"] = {"input": usage.input, "output": usage.output}
            case _:
                pass
    return facts


def _turn_facts(turn: RecordedTurn | None) -> dict[str, JSON] | None:
    if turn is None:
        return None
    reply, calls, results = turn.reply, list[JSON](), list[JSON]()
    for call in reply.calls:
        calls.append([call.name, _decode_arguments(call.arguments)])
        result = turn.results.get(call.id)
        results.append(None if result is None else [str(result.error or "ok"), result.text])
    return {
        "said": list(turn.prompts),
        "text": reply.text,
        "calls": calls,
        "results": results,
        "tokens": {"input": reply.usage.input, "output": reply.usage.output},
        "cost": reply.cost,
    }


def _decode_arguments(text: str) -> JSON:
    """Arguments by value: whitespace and the order of keys make no difference."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _differences(
    turn: int, a: dict[str, JSON] | None, b: dict[str, JSON] | None
) -> Iterator[Difference]:
    if a is None or b is None:
        yield Difference(turn, "turn", a, b)
        return
    for name in dict.fromkeys((*a, *b)):
        left, right = a.get(name), b.get(name)
        if left != right:
            yield Difference(turn, name, left, right)
