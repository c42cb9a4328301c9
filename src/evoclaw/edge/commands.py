"""The commands of a device: one function for each.

Commands that do something (`tool`, `execute`, `prompt`) go to `EdgeCalls`, which journals them. The
others are read-only or idempotent, and are answered at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.genome import EDGE_TUNABLES, Genome
from evoclaw.core.messages import JSON, ErrorKind, is_array, is_object
from evoclaw.edge.calls import EdgeCalls
from evoclaw.edge.device import EdgeParts
from evoclaw.edge.genome import MAX_EDGE_GENOME_BYTES
from evoclaw.edge.model_files import model_chunk
from evoclaw.edge.plans import commands_within, no_grants
from evoclaw.edge.reports import EdgeReports
from evoclaw.transport.wire import (
    WIRE_VERSION,
    Command,
    NestedResult,
    ReportType,
    Welcome,
    WireError,
    convert,
    message_hash,
    tool_hash,
)

Work: TypeAlias = Coroutine[object, object, None]


class EdgeDevice(Protocol):
    """The device that a command is for."""

    parts: EdgeParts
    calls: EdgeCalls
    reports: EdgeReports
    counts: Counter[str]

    def spawn(self, work: Work) -> None:
        """Start a background task."""
        ...

    def send_hello(self) -> None:
        """Send a hello soon."""
        ...

    def on_welcome(self, welcome: Welcome) -> None:
        """Take an orchestrator's answer to a hello."""
        ...

    async def advertise(self) -> None:
        """Publish the advert again."""
        ...

    def metrics(self) -> dict[str, JSON]:
        """The metrics so far."""
        ...

    def stop(self) -> None:
        """Leave."""
        ...


QuickCommand: TypeAlias = Callable[[EdgeDevice, Command], Awaitable[JSON]]

BROADCAST_COMMANDS = frozenset({"hello", "ping"})
"""Commands that may be broadcast to every device."""
ORDERED_COMMANDS = frozenset({"update_genome", "update_strategy"})
"""Signed commands that must not be carried out after a newer one of them."""
NO_REQUEST_ID = "The command has no request_id, so it was not run: add a short unique text."
MAX_TOOLS_PAGE_BYTES = 100_000
"""Size of one page of `tools_list`."""


def take(edge: EdgeDevice, command: Command, message: bytes, *, for_all: bool = False) -> None:
    """Run a command, or refuse it."""
    name = command.command
    known = name in edge.parts.planners or name in QUICK_COMMANDS
    if for_all and name not in BROADCAST_COMMANDS:
        edge.counts["ignored"] += 1
    elif name in CONVERSATION_COMMANDS:
        CONVERSATION_COMMANDS[name](edge, command)
    elif not command.request_id:
        edge.counts["unreadable: no request_id"] += 1
        if not for_all:
            edge.spawn(
                refuse(edge, "", WireError(ErrorKind.INVALID_PARAMS, NO_REQUEST_ID), message)
            )
    elif not known or not accepted_commands(edge).issuperset(commands_within(command)):
        accepted = ", ".join(sorted(accepted_commands(edge)))
        text = f"This agent does not accept the command {name[:64]!r}; it accepts: {accepted}."
        kind = ErrorKind.PERMISSION_DENIED if known else ErrorKind.NOT_FOUND
        edge.spawn(refuse(edge, command.request_id, WireError(kind, text), message))
    elif name in edge.parts.planners:
        edge.calls.accept(command, message)
    else:
        edge.spawn(_answer(edge, command, message))


def accepted_commands(edge: EdgeDevice) -> frozenset[str]:
    """The commands that a device accepts from at least one sender."""
    accepts = edge.parts.accepts
    return ALL_COMMANDS if accepts is None else ALL_COMMANDS & accepts


async def refuse(edge: EdgeDevice, request_id: str, problem: WireError, message: bytes) -> None:
    """Refuse a message; the answer is about this message, not others with its id."""
    payload: dict[str, JSON] = {
        "status": "error",
        "error": str(problem),
        "error_type": str(problem.kind),
        "request_id": request_id,
        "refuses": message_hash(message),
    }
    if problem.kind is ErrorKind.VERSION_MISMATCH:
        payload["details"] = {"v_min": WIRE_VERSION, "v_max": WIRE_VERSION}
    await edge.reports.send(ReportType.ERROR, payload)


async def _answer(edge: EdgeDevice, command: Command, message: bytes) -> None:
    try:
        if command.command not in edge.parts.unsigned and edge.parts.check is not no_grants:
            await edge.parts.clock.known()
            grant = edge.parts.check(command)
            if grant is not None and ORDERED_COMMANDS.intersection(commands_within(command)):
                await edge.parts.genomes.check_order(grant.issued_at, command.request_id)
        await _check_order_number(edge, command)
        answer = await QUICK_COMMANDS[command.command](edge, command)
    except ToolFailure as problem:
        error = WireError(problem.kind, problem.message)
        return await refuse(edge, command.request_id, error, message)
    except EvoClawError as problem:
        error = WireError(ErrorKind.INTERNAL, str(problem))
        return await refuse(edge, command.request_id, error, message)
    payload = {"status": "success", "result": answer, "request_id": command.request_id}
    await edge.reports.send(ReportType.RESULT, payload)
    if command.command == "shutdown":
        edge.stop()
    return None


async def _check_order_number(edge: EdgeDevice, command: Command) -> None:
    """Refuse a numbered change of the genome that arrives after one with a higher number."""
    number = command.payload.get("order")
    changes = command.command in ORDERED_COMMANDS or command.payload.get("action") == "roll_back"
    if changes and isinstance(number, int):
        await edge.parts.genomes.check_order_number(number)


async def _ping(edge: EdgeDevice, command: Command) -> JSON:
    return {"pong": True, "boot_id": edge.parts.identity.boot_id, "v": WIRE_VERSION}


async def _tools_list(edge: EdgeDevice, command: Command) -> JSON:
    """Page by page: `offset` in, `next` out while there are more."""
    tools = edge.parts.executor.tools()
    first = command.payload.get("offset", 0)
    start = first if isinstance(first, int) and first >= 0 else 0
    page: list[JSON] = []
    size = 0
    for tool in tools[start:]:
        shown = msgspec.to_builtins(tool) | {"hash": tool_hash(tool)}
        size += len(msgspec.json.encode(shown))
        if page and size > MAX_TOOLS_PAGE_BYTES:
            break
        page.append(shown)
    end = start + len(page)
    return {"tools": page, "next": end if end < len(tools) else None}


async def _get_metrics(edge: EdgeDevice, command: Command) -> JSON:
    return edge.metrics()


async def _cancel(edge: EdgeDevice, command: Command) -> JSON:
    wanted = command.payload.get("request_id") or command.payload.get("job_id")
    if not isinstance(wanted, str):
        raise ToolFailure(ErrorKind.INVALID_PARAMS, "Set `request_id` to the call.")
    if edge.calls.cancel(wanted):
        return {"request_id": wanted, "cancelled": True, "state": "cancelling"}
    row = await edge.calls.cancel_unseen(wanted)
    if row is None or edge.calls.cancel(wanted):  # it may have arrived just now
        return {"request_id": wanted, "cancelled": True, "state": "cancelled"}
    return {"request_id": wanted, "cancelled": False, "state": str(row.state)}


async def _job(edge: EdgeDevice, command: Command) -> JSON:
    """`list` the jobs, `read` the status of one, or `cancel` it."""
    action, wanted = command.payload.get("action", "list"), command.payload.get("job_id")
    if action == "list":
        return {"jobs": [live.describe() for live in edge.calls.live if live.is_job]}
    if action not in ("read", "cancel") or not isinstance(wanted, str):
        text = "`action` must be list, read or cancel; read and cancel need a `job_id`."
        raise ToolFailure(ErrorKind.INVALID_PARAMS, text)
    row = await edge.parts.journal.get(wanted)
    if row is None:
        raise ToolFailure(ErrorKind.NOT_FOUND, f"There is no job {wanted[:200]!r} here.")
    if action == "cancel":
        return await _cancel(edge, command)
    live = next((call for call in edge.calls.live if call.request_id == wanted), None)
    if live is not None:
        return live.describe() | {"ended": False, "output": live.said}
    found: dict[str, JSON] = {"job_id": wanted, "state": str(row.state)}
    found["ended"] = row.state.terminal
    if row.report:
        found["outcome"] = msgspec.json.decode(row.report)["payload"]
    return found


async def _update_genome(edge: EdgeDevice, command: Command) -> JSON:
    """Change tunables; `update_strategy` is an older name of the command."""
    payload = command.payload
    patch = payload.get("genome", payload.get("strategy", payload))
    if not is_object(patch):
        raise ToolFailure(ErrorKind.INVALID_PARAMS, "The genome must be an object of tunables.")
    patch = {key: value for key, value in patch.items() if key != "request_id"}
    return await _in_force(edge, await edge.parts.genomes.update(patch))


async def _in_force(edge: EdgeDevice, genome: Genome) -> JSON:
    """Apply a changed genome: to waiting calls, and to the limits in the advert."""
    edge.calls.places.changed()
    await edge.advertise()
    return genome.view(EDGE_TUNABLES)


async def _evolution(edge: EdgeDevice, command: Command) -> JSON:
    """`status` (genome, its history and fitness) or `roll_back` to an earlier version."""
    genomes = edge.parts.genomes
    action = command.payload.get("action", "status")
    if action == "roll_back":
        version = command.payload.get("version")
        if not isinstance(version, int):
            # "The previous version" would be another one when the command is repeated.
            raise ToolFailure(
                ErrorKind.INVALID_PARAMS, "Set `version` to the version to roll back to."
            )
        await _in_force(edge, await genomes.roll_back(version))
    elif action != "status":
        raise ToolFailure(ErrorKind.INVALID_PARAMS, "`action` must be status or roll_back.")
    return {
        "genome": genomes.current().view(EDGE_TUNABLES),
        "history": _fitting(await genomes.history()),
        "fitness": edge.parts.outcomes.fitness(),
    }


def _fitting(history: Sequence[Genome]) -> list[JSON]:
    """The configured genome, and the newest versions that fit into the answer, the oldest first."""
    first, *versions = (genome.view(EDGE_TUNABLES) for genome in history)
    newest: list[JSON] = []
    remaining = MAX_EDGE_GENOME_BYTES
    for version in reversed(versions):
        remaining -= len(msgspec.json.encode(version)) + 1
        if remaining < 0:
            break
        newest.append(version)
    return [first, *reversed(newest)]


async def _nested_result(edge: EdgeDevice, command: Command) -> JSON:
    """The result of a call that the model of this device made through the orchestrator."""
    try:
        return {"taken": edge.parts.nested.deliver(convert(command.payload, NestedResult))}
    except WireError as problem:
        raise ToolFailure(problem.kind, f"The result cannot be read: {problem}.") from None


async def _shutdown(edge: EdgeDevice, command: Command) -> JSON:
    """Answer first, then leave."""
    return {"leaving": True}


async def _model_chunk(edge: EdgeDevice, command: Command) -> JSON:
    """A chunk of an installed model file, for another machine of the fleet."""
    return await model_chunk(edge.parts.find_model_file, command)


async def _model_push(edge: EdgeDevice, command: Command) -> JSON:
    """A step of the copy of a model file to this device."""
    receiver = edge.parts.model_receiver
    if receiver is None:
        raise ToolFailure(ErrorKind.PERMISSION_DENIED, "This edge accepts no models.")
    return await receiver.answer(command)


QUICK_COMMANDS: Mapping[str, QuickCommand] = {
    "ping": _ping,
    "tools_list": _tools_list,
    "get_metrics": _get_metrics,
    "cancel": _cancel,
    "job": _job,
    "update_genome": _update_genome,
    "update_strategy": _update_genome,
    "evolution": _evolution,
    "nested_result": _nested_result,
    "model_chunk": _model_chunk,
    "model_push": _model_push,
    "shutdown": _shutdown,
}
ALL_COMMANDS = frozenset(QUICK_COMMANDS) | {"tool", "execute", "prompt"}
"""Every command except those of the protocol itself."""


def _is_granted(edge: EdgeDevice, command: Command) -> bool:
    """Whether a command of the protocol itself was signed, where this device has a key."""
    try:
        edge.parts.check(command)
    except ToolFailure:
        edge.counts[f"refused: {command.command}"] += 1
        return False
    return True


def _welcome(edge: EdgeDevice, command: Command) -> None:
    if not _is_granted(edge, command):
        return
    try:
        edge.on_welcome(convert(command.payload, Welcome))
    except WireError:
        edge.counts["unreadable: welcome"] += 1


def _result_ack(edge: EdgeDevice, command: Command) -> None:
    values = command.payload.get("request_ids")
    ids = [value for value in values if isinstance(value, str)] if is_array(values) else []
    if _is_granted(edge, command):
        edge.spawn(edge.reports.acknowledged(ids))


def _hello(edge: EdgeDevice, command: Command) -> None:
    edge.send_hello()


CONVERSATION_COMMANDS: Mapping[str, Callable[[EdgeDevice, Command], None]] = {
    "welcome": _welcome,
    "result_ack": _result_ack,
    "hello": _hello,
}
