"""What is reported, to whom, how often, and when not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from msgspec.structs import replace

from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.core.messages import JSON
from evoclaw.governance.autonomy import Level
from evoclaw.orchestrator.notifications import findings
from evoclaw.orchestrator.notifications.settings import NotifySettings, NotifyWebhookSettings
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.notifications import (
    SECRET,
    NotifyingService,
    asking_model,
    notifying_service,
)
from tests.support.service import LIMIT
from tests.support.waiting import until

QUESTION = {"question": f"Red or blue? {SECRET}", "options": ["red", "blue"]}


async def messages(up: NotifyingService, count: int) -> list[JSON]:
    """Wait for so many messages; there are no more after another look."""
    await up.services.wait_for("ntfy", count)
    return [found.body for found in up.services.of("ntfy")]


async def ended_run(up: NotifyingService) -> str:
    client = await up.client()
    run_id = str((await client.post("/v1/runs", {"message": "tidy the attic"})).json["run_id"])
    await client.until(f"/v1/runs/{run_id}", "state", "ended")
    return run_id


async def test_an_approval_is_reported_once_also_by_two_processes_and_after_a_restart(
    tmp_path: Path,
) -> None:
    async with notifying_service(tmp_path, asking_model(2)) as up:
        await up.waiting_run(await up.client())
        other = up.another_process()
        async with other.serving():
            await asyncio.gather(other.scan(), up.notifications.scan())
            await up.waiting_run(await up.client())
            found = await messages(up, 2)
            await asyncio.gather(other.scan(), up.notifications.scan())
        restarted = up.another_process()
        async with restarted.serving():
            await restarted.scan()
        checked = await restarted.test("local", "phone")
        assert checked is not None
        assert checked.ok
        assert len(await messages(up, 3)) == 3
        first = found[0]
        assert first["title"] == "Approval needed"
        assert " wants to use work on " in first["message"]
        assert first["click"] == f"{up.url}/#/approvals"
        assert SECRET not in str(found)


async def test_a_question_is_reported_without_secrets(tmp_path: Path) -> None:
    model = Scripted(calls(("question", QUESTION)), says("red it is"))
    async with notifying_service(tmp_path, model, level=Level.FULL) as up:
        ann = await up.client()
        await up.waiting_run(ann)
        (found,) = await messages(up, 1)
        assert found["title"] == "A question for you"
        assert "Red or blue?" in found["message"]
        assert "(red, blue)" in found["message"]
        assert SECRET not in found["message"]
        assert [one["label"] for one in found["actions"]] == ["Open"]


async def test_a_step_of_a_workflow_that_waits_for_a_person_is_reported(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model()) as up:
        ann = await up.client()
        started = await ann.post("/v1/workflows/greet/runs", {})
        assert started.status == 201, started.body
        (found,) = await messages(up, 1)
        assert found["title"] == "A workflow waits for you"
        assert found["message"] == "Step 'ask' of the workflow 'greet' waits: May I greet?"
        path = f"/v1/workflow-runs/{started.json['id']}"
        assert (
            await ann.post(f"{path}/answer", {"step": "ask", "decision": "approve"})
        ).status == 200
        await ann.until(path, "state", "succeeded")
        await up.notifications.scan()
        assert len(up.services.of("ntfy")) == 1


async def test_a_failed_run_and_a_long_run_are_reported_once(tmp_path: Path) -> None:
    broken = ProviderError(ProviderErrorKind.UNKNOWN, f"the key {SECRET} is wrong")
    model = Scripted(broken, says("done"))
    async with notifying_service(tmp_path, model, long_run_s=1.0, serve=False) as up:
        async with up.notifications.serving():
            run_id = await ended_run(up)
            (failed,) = await messages(up, 1)
            await ended_run(up)
            await up.notifications.scan()
        assert failed["title"] == "A run failed"
        assert '"tidy the attic" of helper' in failed["message"]
        assert SECRET not in failed["message"]
        assert failed["click"] == f"{up.url}/#/runs/{run_id}"
        # The second run was quick: for a notifier that calls every run long, it is long.
        quick = replace(up.notifiers[0], long_run_s=0.0)
        up.notifiers = (quick,)
        patient = up.another_process()
        async with patient.serving():
            found = await messages(up, 2)
        assert found[1]["title"] == "A long run ended"
        assert "ended after" in found[1]["message"]


async def test_many_runs_that_ended_at_once_are_all_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "ENDED_RUNS_PER_PAGE", 2)
    broken = ProviderError(ProviderErrorKind.UNKNOWN, "no")
    model = Scripted(*[broken] * 3, says("done"), *[broken] * 2)
    async with notifying_service(tmp_path, model, serve=False) as up:
        async with up.notifications.serving():
            for _ in range(6):
                await ended_run(up)
            assert {found["title"] for found in await messages(up, 5)} == {"A run failed"}
            await up.notifications.scan()
        assert len(up.services.of("ntfy")) == 5


async def test_runs_that_ended_before_a_notifier_was_configured_are_not_reported(
    tmp_path: Path,
) -> None:
    broken = ProviderError(ProviderErrorKind.UNKNOWN, "no")
    async with notifying_service(tmp_path, Scripted(broken, broken), serve=False) as up:
        await ended_run(up)
        async with up.notifications.serving():
            await up.notifications.scan()
            second = await ended_run(up)
            (found,) = await messages(up, 1)
        assert found["click"].endswith(second)


async def test_a_notifier_reports_only_what_its_settings_name(tmp_path: Path) -> None:
    broken = ProviderError(ProviderErrorKind.UNKNOWN, "no")
    asks = calls(("work", {}))
    model = Scripted(broken, asks, asks)
    async with notifying_service(tmp_path, model, on=("approval",), users=("ann",)) as up:
        await ended_run(up)
        await up.waiting_run(await up.client(user="bob"))
        await up.waiting_run(await up.client(user="ann"))
        await messages(up, 1)
        await up.notifications.scan()
        checked = await up.notifications.test("local", "phone")
        assert checked is not None
        assert checked.ok
        assert [found["title"] for found in await messages(up, 2)] == [
            "Approval needed",
            "Test message",
        ]
        assert await up.notifications.test("local", "other") is None
        assert await up.notifications.test("other", "phone") is None


async def test_a_notifier_of_another_tenant_gets_nothing(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model(), tenant="other") as up:
        await up.waiting_run(await up.client())
        await up.notifications.scan()
        assert await up.notifications.views("local") == []
        (view,) = await up.notifications.views("other")
        assert (view.name, view.last_state, view.answers) == ("phone", "", True)
    assert up.services.received == []


async def test_more_messages_than_the_limit_become_one_summary(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model(5), serve=False, max_per_hour=2) as up:
        for _ in range(4):
            await up.waiting_run(await up.client())
        async with up.notifications.serving():
            first, second = await messages(up, 2)
            assert first["title"] == "Approval needed"
            assert (second["title"], second["message"]) == (
                "3 more",
                "3 more wait for you. Open the dashboard to see them.",
            )
            # What comes later waits until there is room again.
            await up.waiting_run(await up.client())
            await up.notifications.scan()
            assert len(up.services.of("ntfy")) == 2
            up.clock.offset = 3_601
            assert (await messages(up, 3))[2]["title"] == "Approval needed"


async def test_a_message_is_sent_again_until_the_service_takes_it(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model()) as up:
        up.services.refusals.append(web.Response(status=503, text="try later"))
        await up.waiting_run(await up.client())
        await messages(up, 1)
        assert up.notifications.counts["not delivered"] == 1


async def test_a_call_that_was_answered_is_no_longer_reported(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model(2), max_per_hour=1) as up:
        ann = await up.client()
        first = await up.waiting_run(ann)
        await messages(up, 1)
        second = await up.waiting_run(ann)
        await up.notifications.scan()
        for run_id in (first, second):
            assert (await ann.post(f"/v1/runs/{run_id}/approve", {})).status == 200
            await ann.until(f"/v1/runs/{run_id}", "state", "ended")
        up.clock.offset = 3_601
        await up.notifications.scan()
        checked = await up.notifications.test("local", "phone")
        assert checked is not None
        assert [found["title"] for found in await messages(up, 2)] == [
            "Approval needed",
            "Test message",
        ]


async def test_a_test_message_reports_why_it_was_not_sent(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model()) as up:
        admin, reader = await up.client("admin"), await up.client("runs:read")
        assert (await reader.post("/v1/notify/phone/test")).status == 403
        assert (await reader.get("/v1/notify")).status == 403
        up.services.refusals.append(web.Response(status=500, text="out of order"))
        found = (await admin.post("/v1/notify/phone/test")).json
        assert found == {
            "name": "phone",
            "ok": False,
            "detail": "the ntfy server answered with status 500: out of order",
        }
        assert (await admin.post("/v1/notify/phone/test")).json["ok"]
        assert (await admin.post("/v1/notify/other/test")).status == 404
        (listed,) = (await admin.get("/v1/notify")).json["items"]
        assert (listed["kind"], listed["answers"]) == ("ntfy", True)


async def test_a_notifier_that_fails_does_not_delay_another(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model(), serve=False) as up:
        broken = NotifySettings(
            name="hook",
            kind="webhook",
            webhook=NotifyWebhookSettings(url="http://127.0.0.1:1/", secret_env="HOOK_SECRET"),
        )
        up.notifiers = (broken, *up.notifiers)
        both = up.another_process()
        async with both.serving():
            await up.waiting_run(await up.client())
            await messages(up, 1)

            async def settled() -> bool:
                hook, phone = await both.views("local")
                return (hook.last_state, phone.last_state) == ("due", "sent")

            await until(settled, LIMIT)
            assert "cannot be reached" in (await both.views("local"))[0].last_problem
