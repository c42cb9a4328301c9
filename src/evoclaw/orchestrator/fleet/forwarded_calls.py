"""The tool calls that a call of `edge_call` or `nodes` forwards to edges."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from evoclaw.core.messages import JSON, is_object
from evoclaw.core.tools import Call, Tool
from evoclaw.governance.forwarded_calls import ForwardedCallsOf
from evoclaw.orchestrator.fleet.fleet import Fleet


def forwarded_calls(fleet: Fleet) -> ForwardedCallsOf:
    """Look calls up in the tools of all edges; which edge is called does not matter."""

    def forwarded(call: Call) -> Sequence[Call]:
        name, params = _forwarded_tool(call)
        if not name:
            return ()
        found: list[Tool] = []
        for member in fleet.members():
            hit = member.tools.find(name)
            if hit is not None and hit[0] not in found:
                found.append(hit[0])
        return [replace(call, tool=tool, arguments=params) for tool in found]

    return forwarded


def _forwarded_tool(call: Call) -> tuple[str, dict[str, JSON]]:
    """The tool that an edge is asked to run, and its arguments."""
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
