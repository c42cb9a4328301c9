"""A view that is left leaves nothing behind: no timer, no listener, no observer, no stream."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import expect

from evoclaw.core.messages import JSON
from tests.page.looking import VIEWS, Looker
from tests.support.up_process import start_run, wait_for_state

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]
COUNTING = """(() => {
  const intervals = new Set(), observers = new Set(), listeners = new Map();
  const { setInterval, clearInterval, ResizeObserver } = window;
  window.setInterval = (...given) => {
    const id = setInterval(...given);
    intervals.add(id);
    return id;
  };
  window.clearInterval = (id) => { intervals.delete(id); clearInterval(id); };
  window.ResizeObserver = class extends ResizeObserver {
    observe(...given) { observers.add(this); super.observe(...given); }
    disconnect() { observers.delete(this); super.disconnect(); }
  };
  const { addEventListener, removeEventListener } = EventTarget.prototype;
  const counted = (target) => target === document || target === window
    || target instanceof AbortSignal;
  const forget = (target, type, listener) => {
    const held = listeners.get(target) || [];
    listeners.set(target, held.filter((one) => one[0] !== type || one[1] !== listener));
  };
  EventTarget.prototype.addEventListener = function (type, listener, options) {
    const target = this ?? window;
    addEventListener.call(target, type, listener, options);
    if (!counted(target) || target.aborted || options?.signal?.aborted) return;
    if (!listeners.has(target)) {
      listeners.set(target, []);
      if (target instanceof AbortSignal) {
        addEventListener.call(target, "abort", () => listeners.delete(target), { once: true });
      }
    }
    listeners.get(target).push([type, listener]);
    if (options?.signal) {
      addEventListener.call(options.signal, "abort", () => forget(target, type, listener),
        { once: true });
    }
  };
  EventTarget.prototype.removeEventListener = function (type, listener, options) {
    const target = this ?? window;
    removeEventListener.call(target, type, listener, options);
    if (listeners.has(target)) forget(target, type, listener);
  };
  window.held = () => ({ intervals: intervals.size, observers: observers.size,
    listeners: [...listeners.values()].reduce((sum, one) => sum + one.length, 0) });
  window.heldBy = (target) => (listeners.get(target) || []).length;
})()"""
"""Counts what is registered and not yet released."""
RECONNECTING = """async () => {
  const { pause } = await import("/ui/api.js");
  const controller = new AbortController();
  for (let times = 0; times < 20; times += 1) await pause(1, controller.signal);
  const left = heldBy(controller.signal);
  const long = pause(1e6, controller.signal);
  controller.abort();
  await long;
  await pause(1e6, controller.signal);
  return left;
}"""


async def held(looker: Looker) -> JSON:
    """What the dashboard holds in a view without timers, once everything has settled."""
    await looker.go("audit")
    await expect(looker.page.locator("[aria-busy=true]")).to_have_count(0)
    await expect(looker.page.get_by_role("heading", level=1)).to_have_text(VIEWS["audit"])
    return await looker.page.evaluate("held()")


async def test_views_that_are_left_release_their_timers_and_listeners(looker: Looker) -> None:
    house = looker.house
    run = await start_run(house.client, "say leave me")
    ended = await wait_for_state(house.client, run)
    items = [["runs", run], ["fleet", "garden"], ["chat", ended["session_id"]]]
    items += [["evolution", "evoclaw"]]
    items += [["settings", name] for name in ("channels", "stops", "start")]
    await looker.page.add_init_script(COUNTING)
    await looker.enter("chat")
    before = await held(looker)

    for address in [*([view] for view in VIEWS), *items, ["fleet?show=map"]]:
        await looker.go(*address)
        await expect(looker.page.locator("[aria-busy=true]")).to_have_count(0)
    assert await held(looker) == before


async def test_views_that_are_left_while_they_load_release_their_timers(looker: Looker) -> None:
    await looker.page.add_init_script(COUNTING)
    await looker.enter("chat")
    for view in VIEWS:  # once, so that all modules are loaded
        await looker.go(view)
    before = await held(looker)

    leaving = await looker.hold_back("**/v1/agents*", "**/v1/workflows*")
    for view in ("agents", "workflows", "metrics"):
        await looker.go(view)
    await looker.go("audit")
    leaving.set()
    await looker.page.unroute_all(behavior="wait")
    assert await held(looker) == before


async def test_waiting_to_reconnect_leaves_no_listener_on_its_signal(looker: Looker) -> None:
    await looker.page.add_init_script(COUNTING)
    await looker.enter("audit")
    async with asyncio.timeout(20):
        assert await looker.page.evaluate(RECONNECTING) == 0


async def test_sessions_that_are_opened_one_after_another_do_not_add_up(looker: Looker) -> None:
    house = looker.house
    sessions: dict[str, str] = {}
    for text in ("session one", "session two"):
        run = await start_run(house.client, f"say {text}")
        sessions[(await wait_for_state(house.client, run))["session_id"]] = text
    await looker.page.add_init_script(COUNTING)
    await looker.enter("chat")
    counts: list[JSON] = []
    for _ in range(3):
        for session, text in sessions.items():
            await looker.page.locator(f"a[href='#/chat/{session}']").click()
            await expect(looker.page.get_by_role("log")).to_contain_text(text)
            await expect(looker.page.locator("[aria-busy=true]")).to_have_count(0)
            # The last thing that an opened session starts is the timer for its relative times.
            await looker.page.wait_for_function("held().intervals === 1")
        counts.append(await looker.page.evaluate("held()"))
    assert counts[1] == counts[2]
