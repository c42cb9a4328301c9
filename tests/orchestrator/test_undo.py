"""What the records of a run say about taking it back."""

from __future__ import annotations

from evoclaw.core.events import CallFinished, CallStarted, Event, Record, ToolsChanged
from evoclaw.core.messages import JSON, ErrorKind, TextBlock, ToolResult
from evoclaw.core.tools import Effect, Tool
from evoclaw.orchestrator.runs.undo import MachineChanges, plan_undo

TOOLS = (
    Tool("write", "", {}, frozenset({"file_write"}), acts=False),
    Tool("bash", "", {}),
    Tool("read", "", {}, effect=Effect.READ),
    Tool("notify", "", {}),
)


def records(*events: Event) -> list[Record]:
    all_events = (ToolsChanged(TOOLS), *events)
    return [Record("r1", seq, float(seq), event) for seq, event in enumerate(all_events, 1)]


def call(
    number: int,
    name: str,
    *,
    machine: str = "pi",
    error: ErrorKind | None = None,
    details: dict[str, JSON] | None = None,
    **arguments: JSON,
) -> tuple[Event, Event]:
    """A call that ran, and its result."""
    request_id, given = f"r1.{number}.0.1", {"agent": machine, **(details or {})}
    result = ToolResult(str(number), name, (TextBlock("x"),), error, given)
    started = CallStarted(str(number), name, arguments, request_id, machine)
    return started, CallFinished(result)


def changes(number: int, *paths: str) -> dict[str, JSON]:
    return {"changes": [{"call": f"r1.{number}.0.1", "paths": list(paths)}]}


def test_the_changes_of_a_machine_are_taken_back_together_in_their_order() -> None:
    found = plan_undo(
        records(
            *call(1, "write", details=changes(1, "a")),
            *call(2, "write", machine="house", details=changes(2, "b")),
            *call(3, "write", details=changes(3, "a", "c")),
        )
    )
    assert found.machines == (
        MachineChanges("pi", ("r1.1.0.1", "r1.3.0.1"), ("a", "c")),
        MachineChanges("house", ("r1.2.0.1",), ("b",)),
    )
    assert found.left == ()


def test_what_cannot_be_taken_back_is_named_with_its_command() -> None:
    found = plan_undo(
        records(
            *call(1, "bash", command="make\ninstall"),
            *call(2, "edge_call", action="bash", params={"command": "reboot"}),
            *call(3, "notify", text="done"),
            *call(4, "read", path="a"),
            *call(5, "bash", error=ErrorKind.PERMISSION_DENIED, command="rm -rf /"),
            *call(6, "write", error=ErrorKind.TIMEOUT, path="a"),
            *call(7, "write", error=ErrorKind.INVALID_PARAMS, path="a"),
            *call(8, "write", path="a"),
            *call(9, "write", path="a", dry_run=True),
        )
    )
    assert found.machines == ()
    assert found.left == (
        "bash on pi: make install",
        "bash on pi: reboot",
        "notify on pi",
        "write on pi: it did not end, and may have changed something",
        "write on pi: what the files held before was not kept",
    )


def test_changes_that_no_edge_reported_are_ignored() -> None:
    for machine in ("orchestrator", ""):
        forged = {"agent": "pi", **changes(9, "a")}
        found = plan_undo(records(*call(1, "notify", machine=machine, details=forged)))
        assert found.machines == ()


def test_a_call_to_several_edges_is_taken_back_on_each() -> None:
    details: dict[str, JSON] = {
        "changes": [
            {"call": "r1.1.0.1-pi", "paths": ["a"], "agent": "pi"},
            {"call": "r1.1.0.1-house", "paths": ["a"], "agent": "house"},
        ]
    }
    found = plan_undo(
        records(*call(1, "edge_call", action="write", details=details, machine="house, pi"))
    )
    assert [(one.machine, one.calls) for one in found.machines] == [
        ("pi", ("r1.1.0.1-pi",)),
        ("house", ("r1.1.0.1-house",)),
    ]
