"""The API of the service as functions: the only place that knows its paths and JSON shapes.

Starts, watches and steers runs; answers approvals and questions; finds and changes sessions.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from urllib.parse import quote

import msgspec
from msgspec import Struct

from evoclaw.cli import exits
from evoclaw.cli.client import ServiceClient, ServiceNotRunning, ServiceRefused
from evoclaw.cli.terminal_text import clean, on_machine, one_line
from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import Record, RunFinished
from evoclaw.core.ledgers import DOLLARS
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.ports import Approval
from evoclaw.core.suggestions import did_you_mean
from evoclaw.tools.question import Question, UserAnswer

START_ATTEMPTS = 3
"""Attempts to start a run when the connection breaks; the idempotency key makes it one run."""
PAGE_ROWS = 200
"""Rows of one page of a list."""


class PendingApprovalRow(Struct, frozen=True):
    """A call that waits for an approval."""

    id: str
    run_id: str
    tool: str
    arguments: dict[str, JSON]
    reason: str
    covers: str = ""
    """What an approval for the session would cover, in words."""
    machine: str = ""
    """The machine that the call would run on."""


def api_path(*parts: str) -> str:
    """A path below `/v1`, with its parts escaped."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


class ReloadedTables(Struct, frozen=True):
    """The tables of the settings file that a running service found changed."""

    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]
    kept_by_edge: tuple[str, ...]


async def reload_settings(client: ServiceClient) -> ReloadedTables:
    """Let the service read its settings file again."""
    return msgspec.convert(await client.post(api_path("settings", "reload"), {}), ReloadedTables)


async def start_run(client: ServiceClient, request: dict[str, JSON]) -> dict[str, JSON]:
    """Start a run exactly once, also if the connection breaks meanwhile."""
    key, body = secrets.token_hex(16), {name: value for name, value in request.items() if value}
    for left in reversed(range(START_ATTEMPTS)):
        try:
            return as_object(await client.post(api_path("runs"), body, key=key))
        except ServiceNotRunning:
            if not left:
                raise
    raise AssertionError("unreachable")


async def cancel_run(client: ServiceClient, run_id: str) -> bool:
    """Cancel a run; False if it had ended."""
    return bool(as_object(await client.post(api_path("runs", run_id, "cancel"))).get("cancelled"))


async def steer_run(client: ServiceClient, run_id: str, message: str) -> None:
    """Send a message to an active run."""
    await client.post(api_path("runs", run_id, "messages"), {"message": message})


async def rate_run(
    client: ServiceClient, run_id: str, verdict: str, reason: str
) -> dict[str, JSON]:
    """Say whether a run was good; returns the rating."""
    body: JSON = {"verdict": verdict, "reason": reason}
    return as_object(await client.post(api_path("runs", run_id, "rating"), body))


class UndoneMachineRow(Struct, frozen=True):
    """How undoing a run ended on one machine."""

    machine: str
    run_id: str
    state: str
    """`undone`, `waiting` or `failed`."""
    restored: tuple[str, ...] = ()
    not_restored: dict[str, str] = {}
    reason: str = ""


class UndoRow(Struct, frozen=True):
    """How undoing a run ended."""

    machines: tuple[UndoneMachineRow, ...]
    left: tuple[str, ...] = ()
    """What cannot be undone."""

    @property
    def exit_code(self) -> int:
        """The exit code of a command that printed it."""
        states = {machine.state for machine in self.machines}
        if "failed" in states or any(machine.not_restored for machine in self.machines):
            return exits.FAILED
        return exits.WAITING if "waiting" in states else exits.OK

    def lines(self) -> list[str]:
        """The same for a person."""
        lines: list[str] = []
        for machine in self.machines:
            where = on_machine(machine.machine)
            lines += [f"undone{where}: {clean(path)}" for path in machine.restored]
            lines += [
                f"not undone{where}: {clean(path)}: {clean(why)}"
                for path, why in machine.not_restored.items()
            ]
            if machine.state != "undone":
                lines.append(f"{machine.state}{where}: {clean(machine.reason)}")
        if not self.machines:
            lines.append("the run changed no files that can be restored")
        if self.left:
            lines.append("these calls cannot be undone:")
            lines += [f"  {one_line(call, 200)}" for call in self.left]
        return lines


async def undo_run(client: ServiceClient, run_id: str) -> UndoRow:
    """Undo the file changes of a run; waits until that has ended, or waits for a person."""
    return msgspec.convert(await client.post(api_path("runs", run_id, "undo")), UndoRow)


async def list_pending_approvals(
    client: ServiceClient, run_id: str = ""
) -> list[PendingApprovalRow]:
    """The calls that wait for an approval, of one run or of all."""
    found = as_items(await client.get(api_path("approvals"), run_id=run_id))
    return [_pending_approval(row) for row in found if row.get("standing") == "waiting"]


async def answer_approval(client: ServiceClient, id_: str, approval: Approval) -> None:
    """Answer an approval, on behalf of the user of this command."""
    body: dict[str, JSON] = {"decision": str(approval.decision), "reason": approval.reason}
    if approval.arguments is not None:
        body["arguments"] = approval.arguments
    await client.post(api_path("approvals", id_, "answer"), body)


async def list_stops(client: ServiceClient) -> list[dict[str, JSON]]:
    """The emergency stops in force; none if the caller may not see them."""
    try:
        return as_items(await client.get(api_path("stops")))
    except ServiceRefused:
        return []


async def list_questions(client: ServiceClient, run: Mapping[str, JSON]) -> list[Question]:
    """The open questions of a run to its user."""
    found = as_items(await client.get(api_path("questions"), session_id=str(run["session_id"])))
    return [_question(row) for row in found if row.get("run_id") == run["run_id"]]


async def answer_question(
    client: ServiceClient, run: Mapping[str, JSON], question: Question, answer: UserAnswer
) -> None:
    """Answer a question of a run."""
    body = {"question_id": question.id, "chosen": list(answer.chosen), "text": answer.text}
    await client.post(api_path("runs", str(run["run_id"]), "answer"), body)


def as_object(answered: JSON) -> dict[str, JSON]:
    """The response, if it is a JSON object."""
    if not is_object(answered):
        raise EvoClawError(
            "the service did not answer with an object; does it run another version of EvoClaw?"
        )
    return answered


def as_items(answered: JSON) -> list[dict[str, JSON]]:
    """The items of a response that is a list."""
    found = as_object(answered).get("items")
    if not is_array(found):
        raise EvoClawError(
            "the service did not answer with a list; does it run another version of EvoClaw?"
        )
    return [row for row in found if is_object(row)]


async def fetch_pages(
    client: ServiceClient, path: str, max_rows: int, **query: str | int
) -> list[dict[str, JSON]]:
    """The newest rows of a long list, fetched page by page."""
    found: list[dict[str, JSON]] = []
    before = ""
    while len(found) < max_rows:
        limit = min(max_rows - len(found), PAGE_ROWS)
        page = as_object(await client.get(path, before=before, limit=limit, **query))
        found += as_items(page)
        before = str(page.get("next") or "")
        if not before:
            break
    return found


def _pending_approval(row: dict[str, JSON]) -> PendingApprovalRow:
    try:
        return msgspec.convert(row, PendingApprovalRow)
    except msgspec.ValidationError as problem:
        raise EvoClawError(f"the service sent an approval that cannot be read: {problem}") from None


def _question(row: dict[str, JSON]) -> Question:
    try:
        return msgspec.convert(row, Question)
    except msgspec.ValidationError as problem:
        raise EvoClawError(f"the service sent a question that cannot be read: {problem}") from None


PAUSED_STATES = ("ended", "waiting")
"""States of a run that produces no more records by itself."""


async def get_run(client: ServiceClient, run_id: str) -> dict[str, JSON]:
    """The state and figures of a run."""
    return as_object(await client.get(api_path("runs", run_id)))


async def get_records(client: ServiceClient, run_id: str) -> list[Record]:
    """The records of a run so far."""
    data = await client.request_bytes("GET", api_path("runs", run_id, "records"))
    try:
        return msgspec.json.Decoder(Record).decode_lines(data)
    except msgspec.DecodeError as problem:
        raise EvoClawError(f"the service sent records that cannot be read: {problem}") from None


async def watch_records(
    client: ServiceClient, run_id: str, after: int = 0
) -> AsyncGenerator[Record]:
    """Every record after number `after`, each once and in order.

    It reconnects to a service that restarts. The last record is a `RunFinished`, unless the run
    was cancelled before it started.
    """
    decoder = msgspec.json.Decoder(Record)
    while True:
        events = client.stream_events(
            api_path("runs", run_id, "events"), after=str(after) if after else "", follow="true"
        )
        async with aclosing(events):
            async for event in events:
                try:
                    record = decoder.decode(event.data)
                except msgspec.DecodeError as problem:
                    raise EvoClawError(
                        f"the service sent a record that cannot be read: {problem}"
                    ) from None
                if record.seq <= after:
                    continue
                after = record.seq
                yield record
                if isinstance(record.event, RunFinished):
                    return
        if (await get_run(client, run_id)).get("state") in PAUSED_STATES:
            return


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


async def similar_session(client: ServiceClient, name: str) -> str:
    """A suggestion for a session that does not exist, by title or id; may be empty."""
    found = await fetch_pages(client, api_path("sessions"), MAX_SEARCHED_SESSIONS)
    titles = [str(session.get("title", "")) for session in found]
    return did_you_mean(name, [*titles, *(str(session.get("id", "")) for session in found)])


async def list_sessions(client: ServiceClient, max_rows: int) -> list[dict[str, JSON]]:
    """The newest sessions."""
    return await fetch_pages(client, api_path("sessions"), max_rows)


async def list_messages(
    client: ServiceClient, session_id: str, start: int = 0
) -> list[tuple[int, dict[str, JSON]]]:
    """The messages of a session in order, without the first ones, with their numbers."""
    found: list[tuple[int, dict[str, JSON]]] = []
    following: JSON = start
    while following is not None:
        page = as_object(
            await client.get(api_path("sessions", session_id, "messages"), start=following)
        )
        found += [
            (int(row.get("number", 0)), message)
            for row in as_items(page)
            if is_object(message := row.get("message"))
        ]
        following = page.get("next")
    return found


MAX_RECALLED_MESSAGES = 20
"""Messages at the end of a session among which its last exchange is looked for."""


async def last_exchange(client: ServiceClient, session_id: str) -> tuple[str, str]:
    """The last message of the user in a session, and the answer to it; empty if there is none."""
    session = as_object(await client.get(api_path("sessions", session_id)))
    count = session.get("messages")
    start = max(0, count - MAX_RECALLED_MESSAGES) if isinstance(count, int) else 0
    asked, answer = "", ""
    for _, message in await list_messages(client, session_id, start):
        if message.get("role") == "user":
            asked, answer = message_text(message), ""
        elif message.get("role") == "assistant":
            answer = message_text(message) or answer
    return asked, answer


MAX_SUMMED_RUNS = 200
"""Runs of a session whose tokens and cost are added up."""


async def list_session_runs(client: ServiceClient, session_id: str) -> list[dict[str, JSON]]:
    """The newest runs of a session."""
    return await fetch_pages(client, api_path("runs"), MAX_SUMMED_RUNS, session_id=session_id)


def run_figures(run: dict[str, JSON]) -> tuple[int, float | None]:
    """The tokens and the cost of a run; None if a price is not known."""
    tokens = (run.get("tokens_in"), run.get("tokens_out"))
    cost = run.get("cost", 0.0)
    return (
        sum(number for number in tokens if isinstance(number, int)),
        float(cost) if isinstance(cost, int | float) else None,
    )


async def budget_left(client: ServiceClient) -> str:
    """The least that an open account has left, in words; empty without a limit in dollars."""
    try:
        accounts = as_items(await client.get(api_path("budgets")))
    except ServiceRefused as problem:
        if problem.status not in (403, 404, 503):
            raise
        return ""
    left: list[float] = []
    for account in accounts:
        kinds = account.get("kinds")
        spending = kinds.get(DOLLARS) if is_object(kinds) else None
        amount = spending.get("left") if is_object(spending) else None
        if isinstance(amount, int | float):
            left.append(float(amount))
    return f"${min(left):.2f} left" if left else ""


async def rename_session(client: ServiceClient, session_id: str, title: str) -> None:
    """Change the title of a session."""
    await client.request("PATCH", api_path("sessions", session_id), {"title": title})


async def move_session(client: ServiceClient, session_id: str, on: str) -> None:
    """Have a session work on another edge; empty is the default edge."""
    await client.request("PATCH", api_path("sessions", session_id), {"on": on})


async def visible_edges(client: ServiceClient) -> list[dict[str, JSON]]:
    """The edges; none if the user may not see them."""
    try:
        return as_items(await client.get(api_path("fleet")))
    except ServiceRefused as problem:
        if problem.status not in (403, 404, 503):
            raise
        return []


async def branch_session(client: ServiceClient, session_id: str, at: int | None, title: str) -> str:
    """Start another session with the messages up to `at`; returns its id."""
    body: dict[str, JSON] = {"title": title} | ({} if at is None else {"at_message": at})
    return str(as_object(await client.post(api_path("sessions", session_id, "branch"), body))["id"])


async def compact_session(
    client: ServiceClient, session_id: str, model: str
) -> tuple[str, int, int]:
    """Continue a session in a new one, with a summary: its id, and the tokens before and after."""
    body: JSON = {"model": model}
    made = as_object(await client.post(api_path("sessions", session_id, "compact"), body))
    return str(made["session_id"]), int(made["tokens_before"]), int(made["tokens_after"])


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
    return "\n".join(_block_text(block) for block in found if is_object(block))


def _block_text(block: dict[str, JSON]) -> str:
    if block.get("type") == "image":
        return f"[an image ({block.get('media_type')})]"
    return str(block.get("text", ""))


_ROLE_NAMES = {"assistant": "agent", "tool": "result", "system": "system"}
