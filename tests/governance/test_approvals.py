"""What an approval is bound to, who may give it, and what of a call is kept to be shown."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Approval, Ask, Decision
from evoclaw.core.redaction import Redactor
from evoclaw.core.tools import Call, Context, Effect, Tool
from evoclaw.governance.approvals import (
    HUMAN_SCOPE,
    MAX_SHOWN_ARGUMENT_CHARS,
    Answerer,
    ApprovalSettings,
    SessionApprovalCache,
    call_digest,
    displayed_arguments,
    scope_of,
)

BASH = Tool("bash", "Runs a command.", {"type": "object"}, frozenset({"shell"}))
ASK = Ask("supervised", "bash writes or executes")


def call(tool: Tool = BASH, request_id: str = "run.1.0.1", **arguments: JSON) -> Call:
    return Call("1", tool, arguments, request_id, 1.0)


def test_the_call_digest_covers_every_argument_and_the_tool_definition() -> None:
    asked = call(command="ls", cwd=".")
    same = call(cwd=".", command="ls")
    assert call_digest(asked) == call_digest(same)
    others = [
        call(command="ls ", cwd="."),
        call(command="ls"),
        call(replace(BASH, version="2"), command="ls", cwd="."),
        call(replace(BASH, parameters={}), command="ls", cwd="."),
        call(replace(BASH, permissions=frozenset()), command="ls", cwd="."),
        call(replace(BASH, effect=Effect.READ), command="ls", cwd="."),
        call(replace(BASH, name="sh"), command="ls", cwd="."),
    ]
    assert len({call_digest(one) for one in (asked, *others)}) == len(others) + 1


def test_the_call_digest_ignores_the_tool_description() -> None:
    worded = replace(BASH, description="Runs any command.")
    assert call_digest(call(worded, command="ls")) == call_digest(call(command="ls"))


def test_a_session_approval_covers_one_tool_reason_session_and_user() -> None:
    one = scope_of(call(command="a"), ASK, "s")
    assert scope_of(call(command="b", request_id="other.1.0.1"), ASK, "s").key == one.key

    def of(tenant: str = "local", user: str = "", agent: str = "") -> Call:
        return replace(call(), context=Context(principal=Principal(tenant, user, agent)))

    others = [
        scope_of(call(), Ask("flow", "…"), "s"),
        scope_of(call(), ASK, "t"),
        scope_of(call(), ASK),
        scope_of(call(request_id="other.1.0.1"), ASK),
        scope_of(call(replace(BASH, version="2")), ASK, "s"),
        scope_of(of(tenant="other"), ASK, "s"),
        scope_of(of(user="eve"), ASK, "s"),
        scope_of(of(agent="other"), ASK, "s"),
    ]
    assert len({scope.key for scope in (one, *others)}) == len(others) + 1
    assert "bash" in one.description
    assert "supervised" in one.description


def test_fault_54_only_a_person_of_the_same_tenant_may_answer() -> None:
    human = frozenset({HUMAN_SCOPE})
    assert not Answerer("person", "ann", "local", human).refusal_reason("local")
    assert "only a person" in Answerer("agent", "bot", "local", human).refusal_reason("local")
    assert "only a person" in Answerer("person", "ann", "local").refusal_reason("local")
    other = Answerer("person", "ann", "other", human).refusal_reason("local")
    assert other == "there is no such approval"


def test_secrets_are_redacted_from_the_stored_arguments() -> None:
    token = "ghp_" + "a1B2" * 9
    marked = {"properties": {"code": {"type": "string", "format": "password"}}}
    asked = call(
        replace(BASH, parameters=marked),
        code="1234",
        password="hunter2",
        url="https://example.org",
        headers={"Authorization": "Basic abc", "Accept": "*/*"},
        env=[{"API_KEY": "k"}],
        command=f"curl -u {token} example.org; echo letmein",
    )
    text = msgspec.json.encode(displayed_arguments(asked, Redactor(["letmein"]))).decode()
    for secret in ("1234", "hunter2", "Basic abc", '"k"', token, "letmein"):
        assert secret not in text
    assert text.count("[redacted:") == 6
    assert "https://example.org" in text


def test_stored_arguments_are_truncated_with_a_note() -> None:
    made = displayed_arguments(call(content="x" * 100_000, path="a"))
    assert len(str(made)) < MAX_SHOWN_ARGUMENT_CHARS + 200
    assert f"[… {100_000 - MAX_SHOWN_ARGUMENT_CHARS} characters not shown …]" in made["content"]
    many = displayed_arguments(call(items=["y" * 1_000] * 1_000, path="a"))
    assert len(str(many)) < MAX_SHOWN_ARGUMENT_CHARS + 200
    assert many["path"] == '"a"'


def test_settings_do_not_wait_by_default_and_invalid_values_are_refused() -> None:
    assert msgspec.convert({}, ApprovalSettings).nobody is None
    for wrong in ({"nobody": "allow"}, {"expires_s": 0}, {"expire_s": 5}, {"patience_s": -1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, ApprovalSettings)


async def test_always_at_the_terminal_covers_only_the_same_tool_and_reason() -> None:
    class Person:
        asked = 0

        async def approve(self, call: Call, ask: Ask) -> Approval:
            self.asked += 1
            return Approval(Decision.SESSION)

    person = Person()
    approver = SessionApprovalCache(person)
    for _ in range(2):
        await approver.approve(call(command="ls"), ASK)
    assert person.asked == 1
    await approver.approve(call(command="ls"), Ask("flow", "it read a web page"))
    await approver.approve(call(replace(BASH, version="2"), command="ls"), ASK)
    assert person.asked == 3
