"""For tests that go through every route: bodies that operations take, and ids like real ones."""

from __future__ import annotations

from evoclaw.core.messages import JSON

KNOWN: dict[str, JSON] = {
    "answerapproval": {"decision": "once"},
    "answerstep": {"step": "ask", "decision": "approve"},
    "steerrun": {"message": "hello"},
    "sendmessage": {"message": "hello"},
    "renamesession": {"title": "mine now"},
    "forkrun": {"turn": 1},
    "raterun": {"verdict": "good"},
}


def body_of(operation: str) -> JSON:
    """Something that the operation of this id would take."""
    named = operation.lower().replace("_", "")
    found = [body for name, body in KNOWN.items() if named.endswith(name)]
    return found[0] if found else {}


def like(id_: str) -> str:
    """Another id of the same look."""
    return id_[:-1] + ("0" if id_[-1] != "0" else "1")
