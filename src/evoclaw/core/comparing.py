"""Two runs beside each other, turn by turn: what is not the same in both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import msgspec
from msgspec import Struct

from evoclaw.core.events import CallFinished, Prompted, Record, Replied, RunFinished, RunStarted
from evoclaw.core.messages import JSON, Reply, ToolResult


class Turn(Struct):
    """One reply and what came of its calls."""

    reply: Reply
    results: dict[str, ToolResult] = {}
    said: tuple[str, ...] = ()
    """What a person or the loop said before it."""


class Difference(Struct, frozen=True):
    """One thing that is not the same in both."""

    turn: int
    """0 for the run as a whole."""
    what: str
    a: JSON
    b: JSON


def compare(a: Sequence[Record], b: Sequence[Record]) -> Iterator[Difference]:
    """What differs, the run as a whole first, then turn by turn; ids and times never count."""
    yield from _differing(0, _whole(a), _whole(b))
    for number, (one, other) in enumerate(zip_longest(turns(a), turns(b)), 1):
        yield from _differing(number, _facts(one), _facts(other))


def turns(records: Sequence[Record]) -> list[Turn]:
    """The turns of a recording."""
    found: list[Turn] = []
    said: list[str] = []
    for record in records:
        match record.event:
            case Prompted(message):
                said.append(message.text)
            case Replied(reply):
                found.append(Turn(reply, {}, tuple(said)))
                said = []
            case CallFinished(result) if found:
                found[-1].results[result.call_id] = result
            case _:
                pass
    return found


def _whole(records: Sequence[Record]) -> dict[str, JSON]:
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


def _facts(turn: Turn | None) -> dict[str, JSON] | None:
    if turn is None:
        return None
    reply, calls, results = turn.reply, list[JSON](), list[JSON]()
    for call in reply.calls:
        calls.append([call.name, _arguments(call.arguments)])
        result = turn.results.get(call.id)
        results.append(None if result is None else [str(result.error or "ok"), result.text])
    return {
        "said": list(turn.said),
        "text": reply.text,
        "calls": calls,
        "results": results,
        "tokens": {"input": reply.usage.input, "output": reply.usage.output},
        "cost": reply.cost,
    }


def _arguments(text: str) -> JSON:
    """By what they mean: blanks and the order of keys do not make another call."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _differing(
    turn: int, a: dict[str, JSON] | None, b: dict[str, JSON] | None
) -> Iterator[Difference]:
    if a is None or b is None:
        yield Difference(turn, "turn", a, b)
        return
    for name in dict.fromkeys((*a, *b)):
        one, other = a.get(name), b.get(name)
        if one != other:
            yield Difference(turn, name, one, other)
