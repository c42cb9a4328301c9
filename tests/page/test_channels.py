"""Channels in the settings: whether they work, what to fix, and who may use them."""

from __future__ import annotations

import pytest
from playwright.async_api import Locator, expect

from tests.page.looking import Looker
from tests.support.fake_telegram import EVE

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]


def card(looker: Looker, name: str) -> Locator:
    return looker.page.get_by_role("article", name=f"channel {name}")


def fact(channel: Locator, name: str) -> Locator:
    return channel.locator(f"dt:text-is('{name}') + dd")


async def test_the_state_and_the_traffic_of_a_channel_are_shown(looker: Looker) -> None:
    await looker.enter("settings", "channels")
    phone = card(looker, "phone")
    await expect(phone.locator(".badge")).to_contain_text("connected")
    await expect(fact(phone, "Account")).to_have_text("@cook_bot")
    await expect(fact(phone, "Last sent")).to_have_text("–")
    await expect(card(looker, "boxes").locator(".badge")).to_contain_text("connected")

    telegram = looker.house.telegram
    before = len(telegram.sent)
    await telegram.write("say hello from the phone")
    await telegram.wait_sent(before + 1)
    assert telegram.texts[-1] == "hello from the phone"
    await expect(fact(phone, "Last received").locator("time")).to_be_visible()
    await expect(fact(phone, "Last sent").locator("time")).to_be_visible()
    assert await looker.barriers() == []


async def test_a_channel_that_cannot_log_in_says_what_to_fix(looker: Looker) -> None:
    await looker.enter("settings", "channels")
    broken = card(looker, "broken")
    await expect(broken.locator(".badge")).to_contain_text("failed")
    problem = broken.locator(".channel-problem")
    await expect(problem).to_contain_text("Telegram refused the token (status 401)")
    await expect(problem).to_contain_text("Correct the environment variable WRONG_TOKEN")
    await expect(problem.locator("code")).to_have_text("evoclaw channels test broken")
    assert "a-token-of-nobody" not in await looker.page.content()


async def test_a_sender_is_added_with_a_code_of_the_dashboard(looker: Looker) -> None:
    await looker.enter("settings", "channels")
    await looker.button("Add a sender to phone").click()
    message = looker.page.get_by_role("dialog").get_by_label("the message")
    telegram = looker.house.telegram
    before = len(telegram.sent)
    await telegram.write(await message.inner_text(), EVE)
    await telegram.wait_sent(before + 1)
    await looker.button("Close").click()

    await expect(fact(card(looker, "phone"), "Senders")).to_contain_text(str(EVE))
