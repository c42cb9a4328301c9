"""The fleet as it changes: an edge that dies and comes back, one that joins by a code."""

from __future__ import annotations

import json
import time

import pytest
from playwright.async_api import expect

from tests.page.house import SECOND
from tests.page.looking import Looker
from tests.support.up_process import start_run, wait_for_state

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]
SEEN = 10_000
"""Milliseconds within which a change of the fleet must be seen."""


async def test_an_edge_shows_as_offline_and_online_within_ten_seconds(looker: Looker) -> None:
    await looker.enter("fleet")
    card = looker.page.get_by_role("listitem").filter(has_text=SECOND)
    await expect(card).to_contain_text("online")

    await looker.house.kill_edge()
    await expect(card).to_contain_text("offline", timeout=SEEN)

    began = time.monotonic()
    await looker.house.start_edge()
    left = SEEN - (time.monotonic() - began) * 1000
    await expect(card).to_contain_text("online", timeout=max(left, 1))


async def test_an_edge_answers_a_ping_and_shows_its_tools(looker: Looker) -> None:
    await looker.enter("fleet", SECOND)

    await looker.button("Ping").click()
    await expect(looker.page.locator("main")).to_contain_text("answered")
    tools = looker.page.get_by_role("region", name="Tools")
    await expect(tools).to_contain_text("bash")


async def test_the_delegation_view_shows_a_map_and_a_table(looker: Looker) -> None:
    asked = {"agent_id": SECOND, "action": "bash", "params": {"command": "true"}}
    run = await start_run(looker.house.client, f"call edge_call {json.dumps(asked)}\nsay done")
    await wait_for_state(looker.house.client, run)
    await looker.enter("fleet")
    await looker.page.get_by_role("link", name="Delegations").click()

    await expect(looker.page.locator("main")).to_contain_text("evoclaw")
    await expect(looker.page.get_by_role("img", name="delegations")).to_be_visible()


async def test_a_device_invitation_shows_a_qr_code_and_a_command(looker: Looker) -> None:
    await looker.enter("settings")
    await looker.page.get_by_label("Name of the device").fill("attic")
    await looker.button("Invite").click()

    await expect(looker.page.locator("main")).to_contain_text("evoclaw edge join")
    await expect(looker.page.get_by_role("img", name="QR")).to_be_visible()
