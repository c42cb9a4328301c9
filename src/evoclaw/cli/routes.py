"""The API of the service as functions: the only place that knows its paths and JSON shapes."""

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
"""Attempts to start a run when the connection breaks; the idempotency key makes it one run."""
PAGE = 200
"""Rows of one page of a list."""


class Waiting(Struct, frozen=True):
    """A call that waits for an approval."""

    id: str
    run_id: str
    tool: str
    arguments: dict[str, JSON]
    reason: str
    covers: str = ""
    """What an approval for the session would cover, in words."""


def path(*parts: str) -> str:
    """A path below `/v1`, with its parts escaped."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


async def begin(client: Client, errand: dict[str, JSON]) -> dict[str, JSON]:
    """Start a run exactly once, also if the connection breaks meanwhile."""
    key, body = secrets.token_hex(16), {name: value for name, value in errand.items() if value}
    for left in reversed(range(TRIES)):
        try:
            return one(await client.post(path("runs"), body, key=key))
        except NotUp:
            if not left:
                raise
    raise AssertionError("unreachable")


async def cancel(client: Client, run_id: str) -> bool:
    """Cancel a run; False if it had ended."""
    return bool(one(await client.post(path("runs", run_id, "cancel"))).get("cancelled"))


async def steer(client: Client, run_id: str, message: str) -> None:
    """Send a message to an active run."""
    await client.post(path("runs", run_id, "messages"), {"message": message})


async def waiting(client: Client, run_id: str = "") -> list[Waiting]:
    """The calls that wait for an approval, of one run or of all."""
    found = many(await client.get(path("approvals"), run_id=run_id))
    return [_waiting(row) for row in found if row.get("standing") == "waiting"]


async def answer(client: Client, id_: str, approval: Approval) -> None:
    """Answer an approval, on behalf of the user of this command."""
    body = {"decision": str(approval.decision), "reason": approval.reason}
    await client.post(path("approvals", id_, "answer"), body)


async def questions(client: Client, run: Mapping[str, JSON]) -> list[Question]:
    """The open questions of a run to its user."""
    found = many(await client.get(path("questions"), session_id=str(run["session_id"])))
    return [_question(row) for row in found if row.get("run_id") == run["run_id"]]


async def reply(client: Client, run: Mapping[str, JSON], question: Question, said: Answer) -> None:
    """Answer a question of a run."""
    body = {"question_id": question.id, "chosen": list(said.chosen), "text": said.text}
    await client.post(path("runs", str(run["run_id"]), "answer"), body)


def one(answered: JSON) -> dict[str, JSON]:
    """The response, if it is a JSON object."""
    if not is_object(answered):
        raise EvoClawError(
            "the service did not answer with an object; does it run another version of EvoClaw?"
        )
    return answered


def many(answered: JSON) -> list[dict[str, JSON]]:
    """The items of a response that is a list."""
    found = one(answered).get("items")
    if not is_array(found):
        raise EvoClawError(
            "the service did not answer with a list; does it run another version of EvoClaw?"
        )
    return [row for row in found if is_object(row)]


async def pages(client: Client, where: str, most: int, **query: str | int) -> list[dict[str, JSON]]:
    """The newest rows of a long list, fetched page by page."""
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
        raise EvoClawError(f"the service sent an approval that cannot be read: {problem}") from None


def _question(row: dict[str, JSON]) -> Question:
    try:
        return msgspec.convert(row, Question)
    except msgspec.ValidationError as problem:
        raise EvoClawError(f"the service sent a question that cannot be read: {problem}") from None
