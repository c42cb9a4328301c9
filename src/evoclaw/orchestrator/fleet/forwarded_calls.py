"""The tool calls that a call of `edge_call` or `nodes` forwards to edges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.tools import Call, Effect, Tool
from evoclaw.governance.forwarded_calls import ForwardedCallsOf
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.fleet.members import DEVICE_TOOL, Member, selects


def forwarded_calls(fleet: Fleet) -> ForwardedCallsOf:
    """Look calls up in the tools of all edges; which edge is called does not matter."""

    def forwarded(call: Call) -> Sequence[Call]:
        name, params = forwarded_tool(call)
        if not name:
            return ()
        found = fleet.tools_named(name)
        calls = [replace(call, tool=tool, arguments=params) for tool in found]
        if call.tool.name == "nodes":
            # As `nodes` asks for a sense of the device where no tool has the name.
            without = [member for member in _targets(fleet, call) if not member.tools.find(name)]
            sense = {**params, "what": name}
            calls += [
                replace(call, tool=tool, arguments=sense)
                for tool in _tools_named(DEVICE_TOOL, without)
            ]
        return calls

    return forwarded


def _tools_named(name: str, members: Iterable[Member]) -> list[Tool]:
    """The different tools of this name that the edges have."""
    found: list[Tool] = []
    for member in members:
        hit = member.tools.find(name)
        if hit is not None and hit[0] not in found:
            found.append(hit[0])
    return found


def only_reads(fleet: Fleet) -> Callable[[Call], bool]:
    """Whether a call of `edge_call` or `nodes` only reads, on each edge that it names.

    An edge that lacks the tool would hand the call to its model as a question: that is no reading.
    """

    def reads(call: Call) -> bool:
        if call.tool.name == "nodes" and call.arguments.get("action") in ("list", "describe"):
            return True
        name, _ = forwarded_tool(call)
        members = _targets(fleet, call)
        return bool(name and members) and all(
            _reads(member, name, call.tool.name) for member in members
        )

    return reads


def _targets(fleet: Fleet, call: Call) -> list[Member]:
    """The edges that a call names or selects, online or not; none if one of them is unknown."""
    wanted = call.arguments.get("node" if call.tool.name == "nodes" else "agent_id")
    names = [wanted] if isinstance(wanted, str) else wanted if is_array(wanted) else []
    found: list[Member] = []
    for name in names:
        chosen = [member for member in fleet.members() if selects(str(name), member)]
        if not chosen:
            return []
        found += chosen
    return found


def _reads(member: Member, name: str, by: str) -> bool:
    hit = member.tools.find(name)
    if hit is None and by == "nodes":
        hit = member.tools.find(DEVICE_TOOL)  # as `nodes` asks for a sense of the device
    return hit is not None and hit[0].effect is Effect.READ and not hit[0].has_side_effects


def forwarded_tool(call: Call) -> tuple[str, dict[str, JSON]]:
    """The tool that an edge is asked to run, and its arguments; empty if it is asked for none."""
    arguments = call.arguments
    params = arguments.get("params")
    inner = params if is_object(params) else {}
    match call.tool.name, arguments.get("action"):
        case ("edge_call", str(action)):
            return action, inner
        case ("nodes", "notify"):
            return "notify", {"message": arguments.get("message", "")}
        case ("nodes", "run") if isinstance(what := arguments.get("what"), str):
            return what, inner
        case _:
            return "", {}
