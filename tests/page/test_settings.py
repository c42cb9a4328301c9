"""Settings: tokens, pairing, why a call is judged so, the emergency stop; and for everybody."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest
from playwright.async_api import expect

from evoclaw.edge.joining import qr_rows
from tests.page.house import SECOND, House
from tests.page.looking import PHONE, VIEWS, Looker
from tests.support.command_line import Shell
from tests.support.up_process import ok

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]
PAGES = [
    ("settings", name)
    for name in ("notifications", "tokens", "budgets", "policy", "stops", "start", "about")
] + [("fleet?show=map", ""), ("fleet", SECOND)]  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("view", "part"), PAGES)
async def test_settings_views_pass_axe_and_fit_a_phone(
    looker: Looker, view: str, part: str, scheme: str
) -> None:
    await looker.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    await looker.enter(view, *([part] if part else []))
    await expect(looker.page.locator("[aria-busy=true]")).to_have_count(0)

    assert await looker.barriers() == []
    await looker.page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    assert await looker.overflow() <= 0


async def test_a_token_is_created_shown_once_and_revoked(looker: Looker) -> None:
    await looker.enter("settings", "tokens")
    await looker.page.get_by_label("Name of the token").fill("a look")
    await looker.button("Read-only access").click()
    await looker.button("Create token").click()
    token = await looker.page.get_by_label("The new token").input_value()

    me = await looker.page.request.get(
        f"{looker.house.url}/v1/me", headers={"authorization": f"Bearer {token}"}
    )
    assert "fleet:read" in (await me.json())["scopes"]
    await looker.page.reload()
    await expect(looker.page.get_by_role("row").filter(has_text="a look")).to_have_count(1)
    assert token not in await looker.page.content()

    await looker.button("Revoke the token a look").click()
    await looker.page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await expect(looker.page.get_by_role("row").filter(has_text="a look")).to_contain_text(
        "revoked"
    )


async def test_a_device_joins_with_the_shown_command_and_appears_online(
    looker: Looker, tmp_path: Path
) -> None:
    await looker.enter("settings", "pair")
    await looker.page.get_by_label("Name of the device").fill("cellar")
    await looker.button("Invite").click()
    command = await looker.page.get_by_label("the command").inner_text()
    link = await looker.page.get_by_label("the link").inner_text()
    code = looker.page.get_by_role("img", name="invitation for cellar")
    assert await drawn(await code.locator("path").get_attribute("d") or "") == qr_rows(link)

    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    shell = Shell(home, work, dict(looker.house.up.models.env))
    joined = await shell.type(*shlex.split(command)[1:], "--capabilities", "*")
    assert joined.code == 0, joined.err
    quiet = asyncio.subprocess.DEVNULL
    edge = await shell.start("edge", "--config", "agent.toml", stdout=quiet, stderr=quiet)
    try:
        await expect(looker.page.locator(".invite-state")).to_contain_text("cellar is online")
    finally:
        edge.kill()
        await edge.wait()
    ok(await looker.house.client.post("/v1/fleet/cellar/revoke"))


async def drawn(path: str) -> tuple[str, ...]:
    """The rows of a code, from how it is drawn."""
    runs = re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", path)
    size = max(int(x) + int(wide) for x, _, wide in runs) + 4
    rows = [["0"] * size for _ in range(size)]
    for x, y, wide in runs:
        rows[int(y)][int(x) : int(x) + int(wide)] = "1" * int(wide)
    return tuple("".join(row) for row in rows)


async def test_the_policy_view_explains_a_refused_call_step_by_step(looker: Looker) -> None:
    await looker.enter("settings", "policy")
    await looker.page.get_by_label("command (required)").fill("rm -rf /")
    await looker.button("Explain").click()

    answer = looker.page.locator(".explained")
    await expect(answer).to_contain_text("It would be denied.")
    await expect(answer.get_by_role("listitem").filter(has_text="Rules")).to_contain_text(
        "whole-system"
    )
    await looker.button("Edit as JSON").click()
    await looker.page.get_by_label("Arguments as JSON").fill("{")
    await looker.button("Explain").click()
    await expect(answer).to_contain_text("is not valid JSON")


async def test_an_emergency_stop_of_a_tool_is_set_and_released(
    looker: Looker, house: House
) -> None:
    await looker.enter("settings", "stops")
    await looker.page.locator(".stop-part select").select_option("tool")
    await looker.page.get_by_label("Name of the agent or tool").fill("notify")
    await looker.page.get_by_role("button", name="Stop…", exact=True).click()
    dialog = looker.page.get_by_role("dialog")
    await dialog.get_by_role("textbox").fill("too loud")
    await dialog.get_by_role("button", name="Stop now").click()

    listed = looker.page.get_by_role("listitem").filter(has_text="tool notify")
    await expect(listed).to_contain_text("too loud")
    (stop,) = ok(await house.client.get("/v1/stops"))["items"]
    assert (stop["kind"], stop["name"]) == ("tool", "notify")

    # The banner on top offers the same; this is the button of the list.
    await listed.get_by_role("button", name="Release tool notify").click()
    await looker.page.get_by_role("dialog").get_by_role("button", name="Release").click()
    await expect(listed).to_have_count(0)
    await expect(looker.page.locator(".stop-banner")).to_have_count(0)
    assert ok(await house.client.get("/v1/stops"))["items"] == []


async def test_an_emergency_stop_is_a_red_banner_on_every_view(looker: Looker) -> None:
    client, page = looker.house.client, looker.page
    stop = {"kind": "agent", "name": "careful", "reason": "smoke in the lab"}
    wrong = await client.post("/v1/stops", {**stop, "name": "carefull"})
    assert wrong.code == "unknown_agent" and "did you mean 'careful'?" in str(wrong.json)
    await looker.enter("fleet")
    banner = page.locator(".stop-banner")
    await expect(banner).to_have_count(0)
    ok(await client.post("/v1/stops", stop))
    try:
        for view in VIEWS:
            await looker.go(view)
            await expect(banner).to_contain_text("Emergency stop: agent careful")
            await expect(banner).to_contain_text("smoke in the lab")
            await expect(banner).to_contain_text("by ")
        await banner.get_by_role("button", name="Release agent careful").click()
        await page.get_by_role("dialog").get_by_role("button", name="Release").click()
        await expect(banner).to_have_count(0)
        assert ok(await client.get("/v1/stops"))["items"] == []
    finally:
        await client.ask("DELETE", "/v1/stops/agent?name=careful")


async def test_the_stop_banner_tells_a_token_without_admin_how_to_resume(looker: Looker) -> None:
    client, page = looker.house.client, looker.page
    wanted = {"name": "looks on", "scopes": ["runs:read", "sessions:read", "fleet:read"]}
    token = ok(await client.post("/v1/tokens", wanted))["token"]
    ok(await client.post("/v1/stops", {"kind": "tool", "name": "notify", "reason": "too loud"}))
    try:
        await page.goto(looker.house.url)
        await page.get_by_label("Token").fill(token)
        await looker.button("Log in").click()
        banner = page.locator(".stop-banner")
        await expect(banner).to_contain_text("Emergency stop: tool notify")
        await expect(banner).to_contain_text("too loud")
        await expect(banner).to_contain_text("evoclaw stop --release --tool notify")
        await expect(banner.get_by_role("button")).to_have_count(0)
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            assert await looker.barriers() == []
    finally:
        await client.ask("DELETE", "/v1/stops/tool?name=notify")
    looker.complaints.clear()  # what the views asked for and this token may not


async def test_a_heartbeat_does_not_steal_keyboard_focus(looker: Looker) -> None:
    await looker.enter("fleet")
    ping = looker.button(f"Ping {SECOND}")
    await ping.focus()
    await looker.page.evaluate(
        """async name => {
          const { on } = await import("/ui/live.js");
          const end = new AbortController();
          await new Promise(done => on("fleet", changed => {
            if (changed.some(one => one.agent_id === name)) requestAnimationFrame(
              () => requestAnimationFrame(done));
          }, end.signal));
          end.abort();
        }""",
        SECOND,
    )
    await expect(ping).to_be_focused()
