"""What somebody tries on the page by a link, a text, a device, or the same browser."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, Request, Route, expect

from evoclaw.core.messages import JSON
from tests.page.house import House
from tests.page.looking import Looker

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]


async def token_of(house: House, user: str) -> str:
    wish = {"name": user, "user": user, "scopes": ["agents:invoke", "runs:read", "sessions:read"]}
    made = await house.client.post("/v1/tokens", wish)
    return str(made.json["token"])


async def entered(page: Page, house: House) -> None:
    await page.goto(house.link)
    await expect(page.locator("#link")).to_have_attribute("data-state", "open")


async def user_of(page: Page) -> str:
    return str(await page.evaluate("import('/ui/live.js').then((live) => live.known.me.user)"))


async def test_a_foreign_login_link_asks_before_switching_users(looker: Looker) -> None:
    page, house = looker.page, looker.house
    theirs = await token_of(house, "mallory")
    await looker.enter("fleet")

    await page.evaluate("token => { location.hash = `#token=${token}`; }", theirs)
    await expect(page.get_by_role("dialog")).to_contain_text("Log in as another user?")
    assert theirs not in page.url
    await looker.button("Cancel").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert await user_of(page) == ""

    await page.evaluate("token => { location.hash = `#token=${token}`; }", theirs)
    await looker.button("Log in with the link").click()
    await expect(page.locator("#link")).to_have_attribute("data-state", "open")
    assert await user_of(page) == "mallory"
    await expect(page.get_by_role("button", name="Log out mallory")).to_be_visible()
    await page.set_viewport_size({"width": 360, "height": 740})
    await page.evaluate("document.querySelector('#leave').textContent = 'Log out WWWWWWWWWWWWWW'")
    assert await looker.overflow() <= 0


async def test_a_foreign_login_link_in_a_new_tab_keeps_the_stored_token(
    house: House, context: BrowserContext
) -> None:
    page = await context.new_page()
    await page.goto(house.url)
    await page.get_by_label("Token").fill(house.link.partition("token=")[2])
    await page.get_by_label("Stay logged in on this device").check()
    await page.get_by_role("button", name="Log in").click()
    await expect(page.locator("#link")).to_have_attribute("data-state", "open")

    other = await context.new_page()
    await other.goto(f"{house.url}/#token={await token_of(house, 'mallory')}")
    await other.get_by_role("button", name="Cancel").click()
    await expect(other.locator("#link")).to_have_attribute("data-state", "open")
    assert await user_of(other) == ""

    await other.get_by_role("button", name="Log out").click()
    await expect(page.get_by_text("You logged out in another tab.")).to_be_visible()


@pytest.mark.parametrize("broken", ["#token=%", "#/%", "#/runs/%E0%A4%A", "#/chat/%/%2F"])
async def test_a_malformed_link_does_not_break_the_dashboard(
    house: House, context: BrowserContext, broken: str
) -> None:
    page = await context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda problem: problems.append(str(problem)))
    await page.goto(house.url + "/" + broken)
    await expect(page.get_by_label("Token")).to_be_visible()
    await entered(page, house)
    await page.evaluate("hash => { location.hash = hash; }", broken)
    await expect(page.locator("main")).not_to_be_empty()
    assert "token" not in page.url
    assert problems == []


@pytest.mark.parametrize(
    "place", ["runs/..", "runs/%2E%2E", "chat/..", "tools/..", "runs/x/compare/..", "chat/."]
)
async def test_a_name_in_a_link_cannot_change_the_api_path(
    house: House, context: BrowserContext, place: str
) -> None:
    page = await context.new_page()
    await entered(page, house)
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url.removeprefix(house.url))

    page.on("request", note)
    await page.evaluate("place => { location.hash = `#/${place}`; }", place)
    await expect(page.get_by_role("alert").first).to_be_visible()
    assert [path for path in asked if path in ("/v1/", "/v1", "/v1/events")] == []
    assert [path for path in asked if re.fullmatch(r"/v1/(events|records|compare.*)", path)] == []


async def test_a_new_user_sees_nothing_of_the_previous_user(looker: Looker) -> None:
    page, house = looker.page, looker.house
    await looker.enter("chat")
    await page.get_by_label("Message").fill("my secret plan")
    await expect(page.locator(".sessions")).to_be_visible()
    # As when the token expires: what was typed is kept, for whoever typed it.
    await page.evaluate("window.dispatchEvent(new CustomEvent('evoclaw:out'))")
    await expect(page.get_by_label("Token")).to_be_visible()
    kept = "import('/ui/live.js').then(({ fleet, runs, known }) => fleet.size + runs.size"
    assert await page.evaluate(f"{kept} + known.approvals.length)") == 0

    await page.get_by_label("Token").fill(await token_of(house, "bob"))
    await looker.button("Log in").click()
    await expect(page.get_by_label("Message")).to_have_value("")
    assert "secret" not in json.dumps(await page.evaluate("({ ...sessionStorage })"))


async def test_drafts_survive_token_expiry_and_are_deleted_on_logout(looker: Looker) -> None:
    page, house = looker.page, looker.house
    await looker.enter("chat")
    await page.get_by_label("Message").fill("my plan")
    await page.evaluate("window.dispatchEvent(new CustomEvent('evoclaw:out'))")
    await page.get_by_label("Token").fill(house.link.partition("token=")[2])
    await looker.button("Log in").click()
    await expect(page.get_by_label("Message")).to_have_value("my plan")

    await looker.button("Log out").click()
    await expect(page.get_by_label("Token")).to_be_visible()
    assert await page.evaluate("sessionStorage.length + localStorage.length") == 0


async def test_malformed_device_values_do_not_break_rendering(looker: Looker) -> None:
    await looker.enter("chat")
    shown: list[str] = await looker.page.evaluate(
        """async () => {
          const { h } = await import("/ui/dom.js");
          const { runBadge, verdictBadge, when } = await import("/ui/components.js");
          const { gist } = await import("/ui/views/run/labels.js");
          const { receiptPart } = await import("/ui/views/run/receipts.js");
          const page = { receiptsOf: async () => [{ at: 1e300, receipt: {} }] };
          const call = { startedAt: 1, result: { details: { receipts: 7, receipt: "x" } } };
          let deep = { agent_id: "a", action: "b" };
          for (let i = 0; i < 20000; i += 1) deep = { agent_id: "a", action: "b", params: deep };
          return [
            h("p", { title: "\\u202egpj.exe\\u0007" }, { toString: 1, valueOf: 1 }).title,
            h("p", null, { toString: 1, valueOf: 1 }).textContent,
            runBadge({ state: "ended", stop: "constructor" }).textContent,
            verdictBadge("__proto__").className,
            when(1e300).textContent,
            gist({ arguments: { agent_id: "a", action: { toString: 1 }, command: "ls" } }),
            gist({ arguments: deep }),
            receiptPart(call, page).textContent,
          ];
        }"""
    )
    assert shown == [
        "gpj.exe", '{"toString":1,"valueOf":1}', "○constructor", "badge quiet", "–", "ls",
        "b on a: a", "Receipt…",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "address", ["//evil.example", "/\\t/evil.example", "javascript:1", "https://evil.example"]
)
async def test_links_never_leave_the_dashboard_origin(looker: Looker, address: str) -> None:
    await looker.enter("chat")
    tried: bool = await looker.page.evaluate(
        """async (address) => {
          const { h } = await import("/ui/dom.js");
          try {
            return new URL(h("a", { href: address }).href).origin === location.origin;
          } catch {
            return true;
          }
        }""",
        address.replace("\\t", "\t"),
    )
    assert tried


def edge(surface: str) -> dict[str, Any]:
    return {
        "agent_id": "pi", "online": True, "state": "pending", "tools": ["read"],
        "waiting": ["read"], "surface": surface,
    }  # fmt: skip


async def test_a_device_approval_names_the_tool_list_that_was_shown(looker: Looker) -> None:
    page = looker.page
    told = json.dumps({"items": [edge("as-shown")], "whole": True})

    async def tell(route: Route) -> None:
        await route.fulfill(
            content_type="text/event-stream", body=f"event: fleet\ndata: {told}\n\n"
        )

    async def approve(route: Route) -> None:
        await route.fulfill(json=edge(""))

    await page.route("**/v1/events", tell)
    await page.route("**/v1/fleet/pi/approve**", approve)
    await page.goto(looker.house.link)
    await looker.go("fleet")
    await looker.button("Approve tools of pi").click()
    async with page.expect_request("**/v1/fleet/pi/approve**") as asked:
        await page.get_by_role("dialog").get_by_role("button", name="Approve").click()
    assert (await asked.value).url.endswith("/approve?seen=as-shown")


async def test_names_that_every_object_has_are_not_found_in_tables(looker: Looker) -> None:
    await looker.enter("approvals")
    shown: JSON = await looker.page.evaluate(
        """async () => {
          const { Group } = await import("/ui/views/approvals/group.js");
          const { verdictBadge } = await import("/ui/components.js");
          const { stopName } = await import("/ui/stops.js");
          return [new Group("constructor", "asked", true).element.querySelector(".badge"),
            verdictBadge("toString")].map((one) => one.textContent)
            .concat(stopName({ kind: "valueOf" }));
        }"""
    )
    assert shown == ["✕effect unknown", "○toString", "valueOf"]
