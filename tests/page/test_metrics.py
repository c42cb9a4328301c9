"""What ran, added up: metrics, the use of a tool, and the audit."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import expect

from tests.page.looking import Looker
from tests.support.up_process import start_run, wait_for_state

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]
ASKED = {"agent_id": "local", "action": "bash", "params": {"command": "echo one"}}
CALL = f"call edge_call {json.dumps(ASKED)}\nsay done"


async def test_metrics_tools_and_audit_views_show_a_finished_run(looker: Looker) -> None:
    run = await start_run(looker.house.client, CALL)
    await wait_for_state(looker.house.client, run)
    await looker.enter("metrics")
    tools = looker.page.get_by_role("region", name="metrics per tool")
    await expect(tools.get_by_role("link", name="edge_call")).to_be_visible()
    await expect(looker.page.get_by_text("wall time saved").first).to_be_visible()
    await looker.go("tools", "edge_call")
    await expect(looker.page.get_by_text("Use in the last 7 days")).to_be_visible()
    await looker.go("audit")
    await looker.page.get_by_label("Run", exact=True).fill(run)
    await looker.button("Search").click()
    await expect(looker.page.get_by_role("row").filter(has_text="edge_call").first).to_be_visible()
    await looker.button("Verify the log").click()
    await expect(looker.page.get_by_text("integrity verified")).to_be_visible()
