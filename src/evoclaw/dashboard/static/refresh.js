// @ts-check
// Content that is loaded again when runs change, and every few seconds.

import { onAbort, replace, ticking } from "./dom.js";
import { on } from "./live.js";
import { failed, load } from "./components.js";

const AFTER_CHANGE_MS = 1000;
const INTERVAL_MS = 5000; // for what the event stream does not have, such as workflow runs

/**
 * Fill an element with the result of some work, and keep it up to date until aborted.
 * @template T
 * @param {HTMLElement} place @param {() => Promise<T>} work @param {(found: T) => any} show
 * @param {AbortSignal} signal
 */
export async function refreshing(place, work, show, signal) {
  let last = "";
  const again = async () => {
    if (signal.aborted || document.hidden) return;
    try {
      const found = await work();
      const now = JSON.stringify(found);
      if (signal.aborted || now === last) return;
      last = now;
      redraw(place, show(found));
    } catch (cause) {
      if (cause.name === "AbortError" || signal.aborted) return;
      last = "";
      replace(place, failed(cause, again));
    }
  };
  await load(place, async () => {
    const found = await work();
    last = JSON.stringify(found);
    return found;
  }, show, signal);
  /** @type {ReturnType<typeof setTimeout>|undefined} */
  let soon;
  on("runs", () => {
    clearTimeout(soon);
    soon = setTimeout(again, AFTER_CHANGE_MS);
  }, signal);
  ticking(again, signal, INTERVAL_MS);
  onAbort(signal, () => clearTimeout(soon));
}

/**
 * Replace the content; a link or a button that has the focus keeps it.
 * @param {HTMLElement} place @param {any} content
 */
function redraw(place, content) {
  const active = document.activeElement;
  const held = active && place.contains(active) ? identity(active) : "";
  replace(place, content);
  if (!held) return;
  const same = [...place.querySelectorAll("a, button")].find((found) => identity(found) === held);
  if (same instanceof HTMLElement) same.focus();
}

/** @param {Element} element */
const identity = (element) => element.getAttribute("href") || element.getAttribute("aria-label")
  || "";
