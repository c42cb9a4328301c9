"""Notifications in the settings, and the service worker that shows them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from playwright.async_api import expect

from tests.page.looking import Looker

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]
MESSAGE = {
    "id": "approval-1",
    "title": "Approval needed",
    "text": "careful wants to use bash on garden: it acts.",
    "link": "/#/approvals",
    "answers": {"approve": "/v1/answers/one", "deny": "/v1/answers/two"},
}


async def test_a_test_message_is_sent_from_the_settings(looker: Looker) -> None:
    await looker.enter("settings", "notifications")
    row = looker.page.get_by_role("row").filter(has_text="browsers")
    await expect(row).to_contain_text("none yet")
    await looker.button("Send a test with browsers").click()
    await expect(looker.page.locator("#toasts")).to_contain_text("no browser is subscribed")


async def test_this_device_registers_a_worker_that_shows_messages(looker: Looker) -> None:
    await looker.page.context.grant_permissions(["notifications"], origin=looker.house.url)
    await looker.enter("settings", "notifications")
    await looker.page.get_by_role("link", name="Set up notifications on this device").click()
    await expect(looker.page.get_by_role("status")).to_have_text(
        "Notifications are off for this device."
    )
    await expect(looker.button("Turn on notifications")).to_be_visible()
    assert await looker.barriers() == []

    session: Any = await looker.page.context.new_cdp_session(looker.page)
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def registered(event: dict[str, list[dict[str, str]]]) -> None:
        for one in event["registrations"]:
            if one["scopeURL"].endswith("/ui/") and not found.done():
                found.set_result(one["registrationId"])

    session.on("ServiceWorker.workerRegistrationUpdated", registered)
    await session.send("ServiceWorker.enable")
    async with asyncio.timeout(20):
        worker = await found
    await session.send(
        "ServiceWorker.deliverPushMessage",
        {"origin": looker.house.url, "registrationId": worker, "data": json.dumps(MESSAGE)},
    )
    shown = await looker.page.evaluate(
        """async () => {
          const registration = await navigator.serviceWorker.getRegistration("/ui/");
          for (let tries = 0; tries < 200; tries += 1) {
            const [one] = await registration.getNotifications();
            if (one) return { title: one.title, body: one.body, tag: one.tag,
              actions: one.actions.map(({ action }) => action) };
            await new Promise((done) => setTimeout(done, 50));
          }
          return null;
        }"""
    )
    assert shown == {
        "title": MESSAGE["title"],
        "body": MESSAGE["text"],
        "tag": MESSAGE["id"],
        "actions": ["approve", "deny"],
    }
