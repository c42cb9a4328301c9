"""What the commands ask of the service, one function each: addresses and shapes stand here only."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from urllib.parse import quote

import msgspec
from msgspec import Struct

from evoclaw.cli.client import Client, NotUp
from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.ports import Approval
from evoclaw.tools.question import Answer, Question

TRIES = 3
"""How often a run is asked to begin when the connection breaks; the key makes it one run."""
PAGE = 200
"""Rows that are asked for at once."""


class Waiting(Struct, frozen=True):
    """A call that waits for a person."""

    id: str
    run_id: str
    tool: str
    arguments: dict[str, JSON]
    reason: str
    covers: str = ""
    """What an approval for the session would cover, in words."""


def path(*parts: str) -> str:
    """An address below `/v1`, whatever characters its parts have."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


async def begin(client: Client, errand: dict[str, JSON]) -> dict[str, JSON]:
    """Begin a run, exactly once, also if the connection breaks meanwhile."""
    key, said = secrets.token_hex(16), {name: value for name, value in errand.items() if value}
    for left in reversed(range(TRIES)):
        try:
            return one(await client.post(path("runs"), said, key=key))
        except NotUp:
            if not left:
                raise
    raise AssertionError("unreachable")


async def cancel(client: Client, run_id: str) -> bool:
    """End a run; False if it had ended."""
    return bool(one(await client.post(path("runs", run_id, "cancel"))).get("cancelled"))


async def steer(client: Client, run_id: str, message: str) -> None:
    """Say something to a run that goes on."""
    await client.post(path("runs", run_id, "messages"), {"message": message})


async def waiting(client: Client, run_id: str = "") -> list[Waiting]:
    """The calls that wait for a person, of one run or of all."""
    found = many(await client.get(path("approvals"), run_id=run_id))
    return [_waiting(row) for row in found if row.get("standing") == "waiting"]


async def answer(client: Client, id_: str, approval: Approval) -> None:
    """Answer for the person who is here."""
    said = {"decision": str(approval.decision), "reason": approval.reason}
    await client.post(path("approvals", id_, "answer"), said)


async def questions(client: Client, run: Mapping[str, JSON]) -> list[Question]:
    """What the person of a run is asked."""
    found = many(await client.get(path("questions"), session_id=str(run["session_id"])))
    return [_question(row) for row in found if row.get("run_id") == run["run_id"]]


async def reply(client: Client, run: Mapping[str, JSON], question: Question, said: Answer) -> None:
    """Answer a question of a run."""
    body = {"question_id": question.id, "chosen": list(said.chosen), "text": said.text}
    await client.post(path("runs", str(run["run_id"]), "answer"), body)


def one(answered: JSON) -> dict[str, JSON]:
    """The object that an answer is."""
    if not is_object(answered):
        raise EvoClawError("the service answered no object; is it another version?")
    return answered


def many(answered: JSON) -> list[dict[str, JSON]]:
    """The items of a list that was answered."""
    found = one(answered).get("items")
    if not is_array(found):
        raise EvoClawError("the service answered no list; is it another version?")
    return [row for row in found if is_object(row)]


async def pages(client: Client, where: str, most: int, **query: str | int) -> list[dict[str, JSON]]:
    """The newest of a long list, at most so many."""
    found: list[dict[str, JSON]] = []
    before = ""
    while len(found) < most:
        limit = min(most - len(found), PAGE)
        page = one(await client.get(where, before=before, limit=limit, **query))
        found += many(page)
        before = str(page.get("next") or "")
        if not before:
            break
    return found


def _waiting(row: dict[str, JSON]) -> Waiting:
    try:
        return msgspec.convert(row, Waiting)
    except msgspec.ValidationError as problem:
        raise EvoClawError(f"no approval, from the service: {problem}") from None


def _question(row: dict[str, JSON]) -> Question:
    try:
        return msgspec.convert(row, Question)
    except msgspec.ValidationError as problem:
        raise EvoClawError(f"no question, from the service: {problem}") from None
