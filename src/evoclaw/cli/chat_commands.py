"""The slash commands of a chat: `/sessions`, `/branch` and others."""

from __future__ import annotations

import os
import shlex
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.cli import service_api
from evoclaw.cli.approvals import identify_answerer
from evoclaw.cli.attachments import Attachment, read_attachment
from evoclaw.cli.client import ServiceClient, open_client
from evoclaw.cli.output import print_err
from evoclaw.cli.service_api import PAUSED_STATES, get_run
from evoclaw.cli.terminal_text import clean, format_table, on_machine, one_line, text_of
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Approval, Decision
from evoclaw.core.suggestions import did_you_mean

DEFAULT_EDGE = "default"
"""What the user types for the default edge."""
DEFAULT_MODEL = "default"
"""What the user types for the model of the agent."""
AGENTS_MODEL = "the agent's own model"
EDGE_SELECTORS = ("any", "*")
"""What the user may type instead of an edge: any that has the tool; those the model names."""
HELP_HINT = "/help lists the commands; to send a message that starts with /, type //"


class ChatPosition(Struct, frozen=True):
    """The session and run that a chat is at."""

    session: str = ""
    """The session id; empty until the first message of a new session."""
    agent: str = ""
    """The agent of a new session."""
    title: str = ""
    """The title of a new session."""
    run: str = ""
    """The last run of the session."""
    attached: tuple[Attachment, ...] = ()
    """The images of the next message."""
    on: str = ""
    """The edge that the session works on, as far as it was chosen; empty: the default edge."""
    model: str = ""
    """The model of the next messages; empty: the agent's own."""
    note: str = ""
    """What the model is told with the next message."""

    async def enter(self, client: ServiceClient) -> tuple[ChatPosition, dict[str, JSON] | None]:
        """Find the named session, or start a new one with that title; with its unfinished run."""
        if not self.session:
            return self, None
        found = await service_api.find_session(client, self.session)
        if found is None:
            return replace(self, session="", title=self.session), None
        where = _position_in(found, self)
        if self.on and self.on != where.on:
            await service_api.move_session(client, where.session, self.on)
            where = replace(where, on=self.on)
        if not found.get("is_open") or not where.run:
            return where, None
        run = await get_run(client, where.run)
        return where, None if run.get("state") == "ended" else run

    def after(self, run: Mapping[str, JSON]) -> ChatPosition:
        """The position after a run was started."""
        if not run:
            return self
        return ChatPosition(
            str(run["session_id"]),
            str(run.get("agent", "")),
            run=str(run["run_id"]),
            on=self.on,
            model=self.model,
        )


def _position_in(session: dict[str, JSON], before: ChatPosition) -> ChatPosition:
    """The position in a session that the service listed."""
    return ChatPosition(
        text_of(session, "id"),
        text_of(session, "agent"),
        run=text_of(session, "last_run"),
        on=text_of(session, "on"),
        model=before.model,
    )


def run_request(position: ChatPosition, message: str) -> dict[str, JSON]:
    """The request that sends a message at a position."""
    is_new = not position.session
    request: dict[str, JSON] = {
        "message": f"{message}\n\n{position.note}" if position.note else message,
        "session_id": position.session,
        "agent": position.agent if is_new else "",
        "title": position.title if is_new else "",
        "model": position.model,
        "on": position.on if is_new else "",
    }
    if position.attached:
        request["images"] = [
            {"media_type": image.media_type, "data": image.data} for image in position.attached
        ]
    return request


async def run_command(name: str, rest: str, position: ChatPosition) -> ChatPosition:
    """Run a command; returns the new position."""
    _, work = COMMANDS[name]
    async with open_client(os.environ) as client:
        return await work(client, rest, position)


async def _help(_client: ServiceClient, _rest: str, where: ChatPosition) -> ChatPosition:
    for line in format_table((name, about) for name, (about, _) in COMMANDS.items()):
        print_err(line)
    print_err(
        "during a run, what you type steers it; press Ctrl-C to cancel it, twice to leave the chat"
    )
    return where


async def _new(_client: ServiceClient, rest: str, where: ChatPosition) -> ChatPosition:
    print_err("your next message starts a new session")
    return ChatPosition(agent=where.agent, title=rest, on=where.on, model=where.model)


async def _sessions(client: ServiceClient, _rest: str, where: ChatPosition) -> ChatPosition:
    for session in await service_api.list_sessions(client, 20):
        mark = "*" if session.get("id") == where.session else " "
        print_err(f"{mark} {clean(text_of(session, 'id'))}  {one_line(text_of(session, 'title'))}")
    return where


async def _session(client: ServiceClient, rest: str, where: ChatPosition) -> ChatPosition:
    if not rest:
        print_err(f"current session: {where.session or 'a new one'}")
        return where
    found = await service_api.find_session(client, rest)
    if found is None:
        similar = await service_api.similar_session(client, rest)
        raise ConfigError(f"there is no session {rest!r}; see /sessions{similar}")
    print_err(f"{text_of(found, 'messages') or 0} earlier messages; /history shows them")
    return _position_in(found, where)


async def _on(client: ServiceClient, rest: str, where: ChatPosition) -> ChatPosition:
    edges = await service_api.visible_edges(client)
    names = [text_of(edge, "agent_id") for edge in edges]
    if not rest:
        rows: list[tuple[str, str]] = []
        for name, edge in zip(names, edges, strict=True):
            chosen = name == where.on if where.on else bool(edge.get("default"))
            online = "online" if edge.get("online") else "offline"
            rows.append((f"{'*' if chosen else ' '} {name}", online))
        for line in format_table(rows):
            print_err(line)
        if not rows:
            print_err("no edge has joined yet; see `evoclaw edges`")
        return where
    chosen = "" if rest == DEFAULT_EDGE else rest
    if where.session:
        await service_api.move_session(client, where.session, chosen)
    elif chosen and chosen not in (*names, *EDGE_SELECTORS):
        known = ", ".join(names) or "none"
        similar = did_you_mean(rest, names)
        raise ConfigError(f"there is no edge {rest!r}; known edges: {known}{similar}")
    print_err(f"the tools of this session now run on {clean(chosen or 'the default edge')}")
    return replace(where, on=chosen)


async def _agent(_client: ServiceClient, rest: str, where: ChatPosition) -> ChatPosition:
    if not rest:
        raise ConfigError("which agent? Type /agent NAME")
    print_err(f"your next message starts a new session with {clean(rest)}")
    return ChatPosition(agent=rest, on=where.on, model=where.model)


async def _model(_client: ServiceClient, rest: str, where: ChatPosition) -> ChatPosition:
    if not rest:
        print_err(
            f"your messages use {clean(where.model) or AGENTS_MODEL}; "
            "switch with /model PROVIDER/MODEL, or back with /model default"
        )
        return where
    model = "" if rest == DEFAULT_MODEL else rest
    print_err(f"your next messages use {clean(model) or AGENTS_MODEL}")
    return replace(where, model=model)


async def _title(client: ServiceClient, rest: str, where: ChatPosition) -> ChatPosition:
    if not rest:
        raise ConfigError("which title? Type /title TEXT")
    if not where.session:
        return replace(where, title=rest)
    await service_api.rename_session(client, where.session, rest)
    return where


async def _history(client: ServiceClient, _rest: str, where: ChatPosition) -> ChatPosition:
    found = await service_api.list_messages(client, where.session) if where.session else []
    for number, message in found:
        print_err(service_api.message_line(number, message))
    if not found:
        print_err("no messages yet")
    return where


async def _tools(client: ServiceClient, _rest: str, where: ChatPosition) -> ChatPosition:
    found = service_api.as_items(await client.get(service_api.api_path("tools")))
    for line in format_table(
        (text_of(tool, "name"), text_of(tool, "description")) for tool in found
    ):
        print_err(line)
    return where


async def _approve(client: ServiceClient, rest: str, where: ChatPosition) -> ChatPosition:
    await _answer(client, rest, where, Decision.ONCE)
    return where


async def _deny(client: ServiceClient, rest: str, where: ChatPosition) -> ChatPosition:
    await _answer(client, rest, where, Decision.DENY)
    return where


async def _answer(
    client: ServiceClient, rest: str, where: ChatPosition, decision: Decision
) -> None:
    if why := identify_answerer().refusal_reason("local"):
        raise ConfigError(why)
    id_, _, reason = rest.partition(" ")
    waiting = await service_api.list_pending_approvals(client, "" if id_ else where.run)
    if not id_ and len(waiting) != 1:
        for call in waiting:
            tool = f"{clean(call.tool)}{on_machine(call.machine)}"
            print_err(f"{call.id}  {tool}  {one_line(str(call.arguments))}")
        raise ConfigError(
            "several calls are waiting: add the ID of one"
            if waiting
            else "no call is waiting for approval"
        )
    await service_api.answer_approval(
        client, id_ or waiting[0].id, Approval(decision, reason.strip())
    )
    print_err(
        f"{id_ or waiting[0].id}: {'denied' if decision is Decision.DENY else 'approved, once'}"
    )


async def _cancel(client: ServiceClient, _rest: str, where: ChatPosition) -> ChatPosition:
    if not where.run or (await get_run(client, where.run)).get("state") == PAUSED_STATES[0]:
        raise ConfigError("no run is active in this session")
    await service_api.cancel_run(client, where.run)
    print_err("cancelled")
    return where


async def _branch(client: ServiceClient, rest: str, where: ChatPosition) -> ChatPosition:
    if not where.session:
        raise ConfigError("this session has no messages yet")
    if rest and not rest.isdecimal():
        raise ConfigError(
            "which message is the last to keep? Type /branch N; /history shows the numbers"
        )
    made = await service_api.branch_session(client, where.session, int(rest) if rest else None, "")
    print_err(f"you are now in session {made}; the previous one was {where.session}")
    return ChatPosition(made, where.agent, on=where.on, model=where.model)


async def _compact(client: ServiceClient, _rest: str, where: ChatPosition) -> ChatPosition:
    if not where.session:
        raise ConfigError("this session has no messages yet")
    made, before, after = await service_api.compact_session(client, where.session, where.model)
    print_err(f"summarised: from about {before:,} to {after:,} tokens")
    print_err(f"you are now in session {made}; the full conversation is still in {where.session}")
    return ChatPosition(made, where.agent, on=where.on, model=where.model)


async def _attach(_client: ServiceClient, rest: str, where: ChatPosition) -> ChatPosition:
    if not rest:
        print_err("nothing is attached; attach a picture to your next message with /attach FILE")
        return replace(where, attached=())
    try:
        words = shlex.split(rest)  # a file that is dropped on a terminal comes quoted
    except ValueError:
        words = [rest]
    image = await read_attachment(words[0] if len(words) == 1 else rest)
    attached = (*where.attached, image)
    names = ", ".join(clean(found.name) for found in attached)
    print_err(f"attached to your next message: {names}; /attach alone removes it")
    return replace(where, attached=attached)


async def _cost(client: ServiceClient, _rest: str, where: ChatPosition) -> ChatPosition:
    runs = await service_api.list_session_runs(client, where.session) if where.session else []
    figures = [service_api.run_figures(run) for run in runs]
    tokens, cost = sum(count for count, _ in figures), sum(paid or 0 for _, paid in figures)
    unknown = sum(paid is None for _, paid in figures)
    print_err(
        f"this session: {len(runs)} runs, {tokens} tokens, ${cost:.4f}"
        + (f", and {unknown} runs at an unknown price" if unknown else "")
    )
    print_err(await service_api.budget_left(client) or "no budget in dollars is configured")
    return where


async def _good(client: ServiceClient, rest: str, where: ChatPosition) -> ChatPosition:
    return await _judge(client, rest, where, "good")


async def _bad(client: ServiceClient, rest: str, where: ChatPosition) -> ChatPosition:
    return await _judge(client, rest, where, "bad")


async def _judge(
    client: ServiceClient, reason: str, where: ChatPosition, verdict: str
) -> ChatPosition:
    if not where.run:
        raise ConfigError("nothing to rate yet: send a message first")
    if why := identify_answerer().refusal_reason("local"):
        raise ConfigError(why)
    await service_api.rate_run(client, where.run, verdict, reason)
    print_err(f"rated the last answer as {verdict}" + (f": {one_line(reason)}" if reason else ""))
    return where


async def _undo(client: ServiceClient, _rest: str, where: ChatPosition) -> ChatPosition:
    return where


async def _output(_client: ServiceClient, _rest: str, where: ChatPosition) -> ChatPosition:
    return where


async def _quit(_client: ServiceClient, _rest: str, where: ChatPosition) -> ChatPosition:
    return where


COMMANDS: Mapping[
    str, tuple[str, Callable[[ServiceClient, str, ChatPosition], Awaitable[ChatPosition]]]
] = {
    "/help": ("Show this list", _help),
    "/new": ("Start a new session: /new [TITLE]", _new),
    "/sessions": ("List your sessions", _sessions),
    "/session": ("Switch to another session: /session ID or TITLE", _session),
    "/agent": ("Start a new session with another agent: /agent NAME", _agent),
    "/on": ("Run tools on another edge, or list the edges: /on [NAME or default]", _on),
    "/model": ("Use another model for the next messages: /model [PROVIDER/MODEL]", _model),
    "/title": ("Rename this session: /title TEXT", _title),
    "/history": ("Show the messages of this session with their numbers", _history),
    "/attach": ("Attach a picture to the next message: /attach FILE", _attach),
    "/output": ("Show the last result in full, or the Nth last: /output [N]", _output),
    "/undo": ("Undo the file changes of the last answer", _undo),
    "/cost": ("Show the tokens and cost of this session, and the remaining budget", _cost),
    "/good": ("Rate the last answer as good: /good [WHY]", _good),
    "/bad": ("Rate the last answer as bad: /bad [WHY]", _bad),
    "/tools": ("List the tools of the service", _tools),
    "/approve": ("Approve a pending call: /approve [ID]", _approve),
    "/deny": ("Deny a pending call: /deny [ID REASON]", _deny),
    "/cancel": ("Cancel the current run", _cancel),
    "/branch": ("Start a new session from message N: /branch [N]", _branch),
    "/compact": ("Summarise older messages, so that the model gets fewer tokens", _compact),
    "/quit": ("Leave the chat", _quit),
}
"""By name: the help text, and the function."""
