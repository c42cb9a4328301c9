"""The sessions of the service: find, list, rename, branch and delete them."""

from __future__ import annotations

from evoclaw.cli.clean import clean, one_line
from evoclaw.cli.client import Client, Refused
from evoclaw.cli.routes import many, one, pages, path
from evoclaw.core.messages import JSON, is_array, is_object

MOST = 1_000
"""The newest sessions that are searched for a title."""


async def find(client: Client, name: str) -> dict[str, JSON] | None:
    """The session with this id, or else the newest with this title; None if there is neither."""
    if name.replace("-", "").isalnum():
        try:
            return one(await client.get(path("sessions", name)))
        except Refused as problem:
            if problem.status != 404:
                raise
    found = await pages(client, path("sessions"), MOST)
    return next((session for session in found if session.get("title") == name), None)


async def sessions(client: Client, most: int) -> list[dict[str, JSON]]:
    """The newest sessions."""
    return await pages(client, path("sessions"), most)


async def messages(client: Client, session_id: str) -> list[tuple[int, dict[str, JSON]]]:
    """All messages of a session in order, with their numbers."""
    found: list[tuple[int, dict[str, JSON]]] = []
    start: JSON = 0
    while start is not None:
        page = one(await client.get(path("sessions", session_id, "messages"), start=start))
        found += [
            (int(row.get("number", 0)), message)
            for row in many(page)
            if is_object(message := row.get("message"))
        ]
        start = page.get("next")
    return found


async def rename(client: Client, session_id: str, title: str) -> None:
    """Change the title of a session."""
    await client.ask("PATCH", path("sessions", session_id), {"title": title})


async def branch(client: Client, session_id: str, at: int | None, title: str) -> str:
    """Start another session with the messages up to `at`; returns its id."""
    body: dict[str, JSON] = {"title": title} | ({} if at is None else {"at_message": at})
    return str(one(await client.post(path("sessions", session_id, "branch"), body))["id"])


async def forget(client: Client, session_id: str) -> None:
    """Delete a session."""
    await client.ask("DELETE", path("sessions", session_id))


def line(number: int, message: dict[str, JSON]) -> str:
    """A message on one line: its number, its role and the start of its text."""
    role = str(message.get("role", ""))
    text = text_of(message)
    calls = message.get("calls")
    if is_array(calls) and calls:
        names = ", ".join(str(call.get("name")) for call in calls if is_object(call))
        text = f"{text} [calls {names}]".strip()
    return f"{number:3}  {clean(_WHO.get(role, role)):8} {one_line(text, 160)}"


def text_of(message: dict[str, JSON]) -> str:
    """The text of a message of any role."""
    if "text" in message:
        return str(message["text"])
    blocks = message.get("blocks")
    found = blocks if is_array(blocks) else []
    return "\n".join(str(block.get("text", "")) for block in found if is_object(block))


_WHO = {"assistant": "agent", "tool": "result", "system": "system"}
