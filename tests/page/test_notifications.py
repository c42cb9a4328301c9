"""Notifications in the settings, and the service worker that shows them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from playwright.async_api import expect

from evoclaw.core.messages import JSON
from tests.page.looking import Looker
from tests.support.push_browser import PushBrowser
from tests.support.up_process import ok

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]
MESSAGE = {
    "id": "approval-1",
    "title": "Approval needed",
    "text": "careful wants to use bash on garden: it acts.",
    "link": "/#/approvals",
    "answers": {"approve": "/v1/answers/one", "deny": "/v1/answers/two"},
}
SUBSCRIBING = """(() => {
  const STORED = "test.subscribed";
  const found = () => (sessionStorage.getItem(STORED) ? {
    ...SUBSCRIPTION, toJSON: () => (SUBSCRIPTION),
    unsubscribe: async () => { sessionStorage.removeItem(STORED); return true; },
  } : null);
  PushManager.prototype.getSubscription = async () => found();
  PushManager.prototype.subscribe = async ({ userVisibleOnly, applicationServerKey: key }) => {
    window.subscribedWith = { userVisibleOnly, key };
    sessionStorage.setItem(STORED, "yes");
    return found();
  };
})()"""
"""The push service of a browser, which a test cannot reach: a subscription with given keys."""
LATE_WORKER = """(() => {
  const real = navigator.serviceWorker.ready;
  const ready = new Promise((done) => { window.activate = () => done(real); });
  const asked = () => { document.documentElement.dataset.waits = "yes"; return ready; };
  Object.defineProperty(ServiceWorkerContainer.prototype, "ready", { get: asked });
})()"""
"""A browser that is slow to start a service worker: it is active when the page calls `activate`."""


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

    await deliver(looker, MESSAGE)
    assert await notification(looker) == {
        "title": MESSAGE["title"],
        "body": MESSAGE["text"],
        "tag": MESSAGE["id"],
        "actions": ["approve", "deny"],
    }


async def deliver(looker: Looker, message: JSON) -> None:
    """Give the service worker a decrypted message, as the browser does, and wait for what it shows.

    The browser says when it has displayed it: polling its list once found none.
    """
    session: Any = await looker.page.context.new_cdp_session(looker.page)
    loop = asyncio.get_running_loop()
    active: asyncio.Future[str] = loop.create_future()
    shown: asyncio.Future[None] = loop.create_future()

    def updated(event: dict[str, list[dict[str, str]]]) -> None:
        for version in event["versions"]:
            script, status = version["scriptURL"], version["status"]
            if script.endswith("/push-worker.js") and status == "activated" and not active.done():
                active.set_result(version["registrationId"])

    def observed(event: dict[str, dict[str, str]]) -> None:
        name = event["backgroundServiceEvent"]["eventName"]
        if name == "Notification displayed" and not shown.done():
            shown.set_result(None)

    session.on("ServiceWorker.workerVersionUpdated", updated)
    session.on("BackgroundService.backgroundServiceEventReceived", observed)
    notifications = {"service": "notifications"}
    await session.send("BackgroundService.startObserving", notifications)
    await session.send("BackgroundService.setRecording", {**notifications, "shouldRecord": True})
    await session.send("ServiceWorker.enable")
    async with asyncio.timeout(20):
        worker = await active
    push = {"origin": looker.house.url, "registrationId": worker, "data": json.dumps(message)}
    await session.send("ServiceWorker.deliverPushMessage", push)
    async with asyncio.timeout(20):
        await shown


async def notification(looker: Looker) -> JSON:
    """The notification that the service worker shows."""
    return await looker.page.evaluate(
        """async () => {
          const registration = await navigator.serviceWorker.getRegistration("/ui/");
          const [one] = await registration.getNotifications();
          return { title: one.title, body: one.body, tag: one.tag,
            actions: one.actions.map(({ action }) => action) };
        }"""
    )


async def test_a_device_can_be_added_once_its_worker_is_active(looker: Looker) -> None:
    await looker.page.context.grant_permissions(["notifications"], origin=looker.house.url)
    await looker.page.add_init_script(LATE_WORKER)
    await looker.enter("settings", "notifications")
    await looker.page.get_by_role("link", name="Set up notifications on this device").click()
    await expect(looker.page.locator("html")).to_have_attribute("data-waits", "yes")
    await expect(looker.button("Turn on notifications")).to_be_hidden()
    await looker.page.evaluate("activate()")
    await expect(looker.button("Turn on notifications")).to_be_visible()


async def test_a_subscribed_device_shows_what_the_service_sent_to_it(looker: Looker) -> None:
    """All is real but the push service of the browser: its endpoint is ours, and so are the keys
    that it would have made. What arrives there is decrypted, and given to the service worker."""
    page, services = looker.page, looker.house.services
    browser = PushBrowser(f"{services.url}/push/chromium")
    await page.context.grant_permissions(["notifications"], origin=looker.house.url)
    await page.add_init_script(
        SUBSCRIBING.replace("SUBSCRIPTION", json.dumps(browser.subscription))
    )
    await looker.enter("settings", "notifications")
    await page.get_by_role("link", name="Set up notifications on this device").click()
    status = page.get_by_role("status")
    await looker.button("Turn on notifications").click()
    await expect(status).to_have_text("Notifications are on for this device.")
    key = ok(await looker.house.client.get("/v1/push/key"))["key"]
    assert await page.evaluate("subscribedWith") == {"userVisibleOnly": True, "key": key}

    await page.get_by_role("link", name="Back to the dashboard").click()
    await looker.button("Send a test with browsers").click()
    await expect(page.locator("#toasts")).to_contain_text("sent to 1 of 1 browsers")
    # The events of other tests of this house are sent to every subscribed browser, too.
    sent = await services.wait_for("push")
    assert {one.headers["content-encoding"] for one in sent} == {"aes128gcm"}
    messages = [browser.read(one.data) for one in sent]
    (message,) = [one for one in messages if one["title"] == "Test message"]
    await deliver(looker, message)
    shown = await notification(looker)
    assert (shown["title"], shown["tag"]) == ("Test message", message["id"])
    assert shown["body"] == "The notifier 'browsers' of EvoClaw works."

    await page.goto(f"{looker.house.url}/ui/push.html")
    await looker.button("Turn off notifications").click()
    await expect(status).to_have_text("Notifications are off for this device.")
    await page.get_by_role("link", name="Back to the dashboard").click()
    await looker.button("Send a test with browsers").click()
    await expect(page.locator("#toasts")).to_contain_text("no browser is subscribed")
