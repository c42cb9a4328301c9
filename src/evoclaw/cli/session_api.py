"""The sessions of the service: find, list, rename, branch and delete them."""

from __future__ import annotations

from evoclaw.cli.clean import clean, one_line
from evoclaw.cli.client import ServiceClient, ServiceRefused
from evoclaw.cli.service_api import api_path, as_items, as_object, fetch_pages
from evoclaw.core.messages import JSON, is_array, is_object

MAX_SEARCHED_SESSIONS = 1_000
"""The newest sessions that are searched for a title."""


async def find_session(client: ServiceClient, name: str) -> dict[str, JSON] | None:
    """The session with this id, or else the newest with this title; None if there is neither."""
    if name.replace("-", "").isalnum():
        try:
            return as_object(await client.get(api_path("sessions", name)))
        except ServiceRefused as problem:
            if problem.status != 404:
                raise
    found = await fetch_pages(client, api_path("sessions"), MAX_SEARCHED_SESSIONS)
    return next((session for session in found if session.get("title") == name), None)


async def list_sessions(client: ServiceClient, max_rows: int) -> list[dict[str, JSON]]:
    """The newest sessions."""
    return await fetch_pages(client, api_path("sessions"), max_rows)


async def list_messages(
    client: ServiceClient, session_id: str
) -> list[tuple[int, dict[str, JSON]]]:
    """All messages of a session in order, with their numbers."""
    found: list[tuple[int, dict[str, JSON]]] = []
    start: JSON = 0
    while start is not None:
        page = as_object(
            await client.get(api_path("sessions", session_id, "messages"), start=start)
        )
        found += [
            (int(row.get("number", 0)), message)
            for row in as_items(page)
            if is_object(message := row.get("message"))
        ]
        start = page.get("next")
    return found


async def rename_session(client: ServiceClient, session_id: str, title: str) -> None:
    """Change the title of a session."""
    await client.request("PATCH", api_path("sessions", session_id), {"title": title})


async def branch_session(client: ServiceClient, session_id: str, at: int | None, title: str) -> str:
    """Start another session with the messages up to `at`; returns its id."""
    body: dict[str, JSON] = {"title": title} | ({} if at is None else {"at_message": at})
    return str(as_object(await client.post(api_path("sessions", session_id, "branch"), body))["id"])


async def delete_session(client: ServiceClient, session_id: str) -> None:
    """Delete a session."""
    await client.request("DELETE", api_path("sessions", session_id))


def message_line(number: int, message: dict[str, JSON]) -> str:
    """A message on one line: its number, its role and the start of its text."""
    role = str(message.get("role", ""))
    text = message_text(message)
    calls = message.get("calls")
    if is_array(calls) and calls:
        names = ", ".join(str(call.get("name")) for call in calls if is_object(call))
        text = f"{text} [calls {names}]".strip()
    return f"{number:3}  {clean(_ROLE_NAMES.get(role, role)):8} {one_line(text, 160)}"


def message_text(message: dict[str, JSON]) -> str:
    """The text of a message of any role."""
    if "text" in message:
        return str(message["text"])
    blocks = message.get("blocks")
    found = blocks if is_array(blocks) else []
    return "\n".join(str(block.get("text", "")) for block in found if is_object(block))


_ROLE_NAMES = {"assistant": "agent", "tool": "result", "system": "system"}
