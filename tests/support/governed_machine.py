"""A machine with rules of its own, and what its audit says became of each call."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.command_line import Shell, reply
from tests.support.llm_servers import Answer

SETTINGS = """
[policy]
off = { grep = "not here" }

[network]
deny = ["denied.test"]

[budget]
lines = 3
"""
"""One thing of each kind that is forbidden; the rest are the rules that are shipped."""


class AuditedVerdict(NamedTuple):
    """One call as the audit has it."""

    tool: str
    verdict: str
    code: str


Given = tuple[str, dict[str, Any]]
TABLE: Mapping[str, tuple[Given, AuditedVerdict]] = {
    "allowed": (("read", {"path": "a.txt"}), AuditedVerdict("read", "allow", "")),
    "denied by a rule": (
        ("bash", {"command": "cat ~/.ssh/id_ed25519"}),
        AuditedVerdict("bash", "deny", "rule:keys-and-passwords"),
    ),
    "asked about": (
        ("bash", {"command": "sudo touch asked"}),
        AuditedVerdict("bash", "ask", "rule:other-rights"),
    ),
    "stopped": (("glob", {"pattern": "*"}), AuditedVerdict("glob", "deny", "stopped")),
    "switched off": (("grep", {"pattern": "x"}), AuditedVerdict("grep", "deny", "tool_off")),
    "a host": (
        ("webfetch", {"url": "http://denied.test/"}),
        AuditedVerdict("webfetch", "deny", "network_domain"),
    ),
    "over the budget": (
        ("write", {"path": "much.txt", "content": "1\n2\n3\n4\n5\n"}),
        AuditedVerdict("write", "deny", "budget_lines"),
    ),
}
"""Calls, one of each kind, and what must be said about each wherever it is made."""
EXPECTED = sorted(judged for _, judged in TABLE.values())
FIRST = [given for given, _ in list(TABLE.values())[:4]]
SECOND = [given for given, _ in list(TABLE.values())[4:]]
"""In two replies: no more than five calls of one are run."""


def write_policy(here: Shell, *, stop: str = "glob") -> None:
    """Write the settings and a stop, and what the calls of the table are about."""
    home = here.home / ".evoclaw"
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "evoclaw.toml").write_text(SETTINGS)
    stops = {"stops": [{"kind": "tool", "name": stop}]}
    (home / "stops.json").write_text(json.dumps(stops))
    write_example_files(here)


def write_example_files(here: Shell) -> None:
    """A file to read, and a key that is nobody's business."""
    (here.workspace / "a.txt").write_text("hello\n")
    (here.home / ".ssh").mkdir(exist_ok=True)
    (here.home / ".ssh" / "id_ed25519").write_text("KEY-OF-THE-OWNER\n")


def settings(here: Shell, text: str) -> None:
    """Write the orchestrator's settings."""
    home = here.home / ".evoclaw"
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "evoclaw.toml").write_text(text)


def audit_records(data: Path) -> list[dict[str, Any]]:
    """The calls that the audit of a data folder has, as they came."""
    lines = [
        json.loads(line)
        for path in sorted((data / "audit").glob("[0-9]*.jsonl"))
        for line in path.read_text().split("\n")[:-1]
    ]
    return [one for one in sorted(lines, key=lambda one: one["seq"]) if one["kind"] == "call"]


def audited_verdicts(data: Path, *, leave_out: Iterable[str] = ()) -> list[AuditedVerdict]:
    """What was said about each call, but for those whose arguments hold one of these words."""
    return sorted(
        AuditedVerdict(one["tool"], one["verdict"], one["code"])
        for one in audit_records(data)
        if not any(word in json.dumps(one["parameters"]) for word in leave_out)
    )


def events(out: str, kind: str) -> list[dict[str, Any]]:
    """Of what `--json` printed, the events of one kind."""
    found = [json.loads(line)["event"] for line in out.splitlines()]
    return [one for one in found if one["type"] == kind]


def results(out: str) -> dict[str, dict[str, Any]]:
    """The results by call id."""
    found = [one["result"] for one in events(out, "call_finished")]
    return {one["call_id"]: one for one in found}


def text_of(result: Mapping[str, Any]) -> str:
    """What the model is told."""
    return "\n".join(block.get("text", "") for block in result["blocks"])


def isolation(result: Mapping[str, Any]) -> str:
    """What a result says that it ran in; empty if nothing was run."""
    return result.get("details", {}).get("isolation", "")


def assert_untouched(here: Shell) -> None:
    """Nothing that was not allowed has happened."""
    assert not (here.workspace / "asked").exists()
    assert not (here.workspace / "much.txt").exists()


def turns(*calls: Given, last: str = "done") -> list[Answer]:
    """Replies that ask for these calls; each turn has one that works, so that none has failed."""
    fine: Given = ("read", {"path": "a.txt"})
    asked = [reply("", fine, *calls[at : at + 4]) for at in range(0, len(calls), 4)]
    return [*asked, reply(last)]


def obfuscated(command: str) -> str:
    """The same command so that no rule sees what it does: only the sandbox is left."""
    packed = base64.b64encode(command.encode()).decode()
    return f'eval "$(echo {packed} | base64 -d)"'
