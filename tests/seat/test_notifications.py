"""Notifications, from the user's chair: a service calls a phone, which answers with one tap."""

from __future__ import annotations

import json
from pathlib import Path

from evoclaw.cli import exits
from tests.support.notification_services import (
    WEBHOOK_SECRET,
    NotificationServices,
    notification_services,
)
from tests.support.ports import free_port
from tests.support.seat import seat
from tests.support.up_process import ok, start_run, wait_for_state


def settings(services: NotificationServices, port: int) -> str:
    return f"""
[server]
requests_per_minute = 100000
burst = 10000
public_url = "http://127.0.0.1:{port}"

[[notify]]
name = "phone"
kind = "ntfy"
answers = true
[notify.ntfy]
url = "{services.url}/ntfy"
topic = "my-topic"

[[notify]]
name = "hook"
kind = "webhook"
[notify.webhook]
url = "{services.url}/hook"
secret_env = "HOOK_SECRET"
"""


async def test_a_call_that_waits_is_reported_once_and_approved_with_one_tap(
    tmp_path: Path,
) -> None:
    port, env = free_port(), {"HOOK_SECRET": WEBHOOK_SECRET}
    async with (
        notification_services() as services,
        seat(
            tmp_path, settings(services, port), "--api-port", str(port), edge=True, env=env
        ) as place,
    ):
        await place.wait_online("local")
        tested = await place.type("notify", "test", "phone")
        assert tested.code == exits.OK, tested.err
        assert "sent to the topic 'my-topic'" in tested.out
        (message,) = await services.wait_for("ntfy")
        assert message.body["title"] == "Test message"

        client = await place.up.wait_ready()
        run_id = await start_run(
            client, 'call bash {"command": "echo x >> mark.txt"}\nsay it is done'
        )
        await wait_for_state(client, run_id, "waiting")
        notice = (await services.wait_for("ntfy", 2))[1].body
        assert notice["title"] == "Approval needed"
        assert "bash" in notice["message"]
        assert "local" in notice["message"]
        approve, deny, opens = notice["actions"]
        assert (approve["label"], deny["label"], opens["label"]) == ("Approve", "Deny", "Open")
        hooked = (await services.wait_for("webhook"))[0].body
        assert hooked["answers"] == {}

        # A preview of the link shows the call, and answers nothing.
        async with client.http.get(approve["url"]) as page:
            text = await page.text()
            assert page.status == 200, text
            assert "mark.txt" in text
            assert "form-action 'self'" in page.headers["content-security-policy"]
        assert ok(await client.get(f"/v1/runs/{run_id}"))["state"] == "waiting"

        form = {"origin": f"http://127.0.0.1:{port}"}
        async with client.http.post(approve["url"], data={}, headers=form) as page:
            assert page.status == 200, await page.text()
            assert "The call was approved." in await page.text()
        ended = await wait_for_state(client, run_id)
        assert ended["text"] == "it is done"
        assert place.up.marks("mark.txt") == 1

        async with client.http.post(deny["url"]) as page:
            assert page.status == 409, await page.text()
        logged = await place.type("audit", "search", "--json")
        assert "with the link of the notifier 'phone'" in logged.out, logged.out
        listed = json.loads((await place.type("notify", "list", "--json")).out)
        assert [(one["name"], one["last_state"]) for one in listed] == [
            ("phone", "sent"),
            ("hook", "sent"),
        ]
        # The service starts again: the same request is not reported again.
        await place.up.stop()
        await place.up.start("--api-port", str(port), edge=True)
        tested = await place.type("notify", "test", "hook")
        assert tested.code == exits.OK, tested.err
        assert len(services.of("ntfy")) == 2
        assert [one.body["reason"] for one in services.of("webhook")] == ["approval", "test"]
