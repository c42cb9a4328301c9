// @ts-check
// The session list: the newest first, open ones marked.

import { get } from "../../api.js";
import { h, onAbort, replace } from "../../dom.js";
import { ago } from "../../format.js";
import { on, runs } from "../../live.js";
import { badge, button, empty, failed } from "../../components.js";
import { titleOf } from "./messages.js";

const PAGE_SIZE = 50;
/** @type {Api.SessionView[]} */
let cached = []; // cached, so that the list is shown at once
let next = "";
window.addEventListener("evoclaw:left", () => { cached = []; next = ""; });

/** The list; `open(id)` shows a session. */
export class SessionList {
  /** @param {(id: string) => unknown} open @param {AbortSignal} signal */
  constructor(open, signal) {
    this.open = open;
    this.signal = signal;
    this.timer = 0;
    this.shownId = "";
    this.rows = h("ul", { class: "sessions" });
    this.more = button("Older", () => this.load(next), { tone: "plain" });
    this.element = h("div", { class: "session-list" }, this.rows, this.more);
    this.draw();
    on("runs", (items) => this.onRuns(items), signal);
    onAbort(signal, () => clearTimeout(this.timer));
  }

  /** Load the list, or the next page. */
  async load(before = "") {
    try {
      const page = await get("/v1/sessions", { before, limit: PAGE_SIZE }, { signal: this.signal });
      const old = before ? cached : [];
      cached = [...old, ...page.items];
      next = page.next || "";
      this.draw();
    } catch (cause) {
      if (cause.name === "AbortError") return;
      if (!cached.length) replace(this.rows, h("li", null, failed(cause, () => this.load())));
      else throw cause;
    }
  }

  /** @param {Api.RunView[]} items */
  onRuns(items) {
    const ids = new Set(cached.map((session) => session.id));
    // Sub-runs have sessions that are not in this list.
    const fresh = items.some((run) => !ids.has(run.session_id) && !run.parent_run);
    if (fresh) this.soon();
    else this.draw();
  }

  /** Reload soon, once for several changes. */
  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load().catch(() => this.draw()), 400);
  }

  /**
   * Mark the session that is shown.
   * @param {string} id
   */
  mark(id) {
    this.shownId = id;
    this.draw();
  }

  /**
   * Add or update a session.
   * @param {Api.SessionView} session
   */
  put(session) {
    const known = cached.some((one) => one.id === session.id);
    cached = known ? cached.map((old) => (old.id === session.id ? session : old))
      : [session, ...cached];
    this.draw();
  }

  /**
   * Remove a session.
   * @param {string} id
   */
  drop(id) {
    cached = cached.filter((one) => one.id !== id);
    this.draw();
  }

  draw() {
    const { activeElement: active } = document;
    const focused = this.rows.contains(active) && active?.getAttribute("data-id");
    const states = new Map();
    for (const run of runs.values()) {
      if (run.state !== "ended") states.set(run.session_id, run.state);
    }
    replace(this.rows, cached.length ? cached.map((one) => this.row(one, states.get(one.id)))
      : h("li", null, empty("No sessions yet.")));
    this.more.hidden = !next;
    for (const link of focused ? this.rows.querySelectorAll("a") : []) {
      if (link.dataset.id === focused) link.focus();
    }
  }

  /** @param {Api.SessionView} session @param {string} [state] */
  row(session, state) {
    /** @type {{[state: string]: string}} */
    const tones = { running: "busy", waiting: "warn" };
    const link = h("a", { href: `#/chat/${encodeURIComponent(session.id)}`,
      "aria-current": session.id === this.shownId && "true", data: { id: session.id } },
    h("span", { class: "title" }, titleOf(session)),
    h("span", { class: "row small soft nowrap" },
      h("span", { class: "grow cut" }, `${session.agent} · ${ago(session.created_at)}`),
      state && badge(tones[state] || "quiet", state)));
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
      event.preventDefault();
      this.open(session.id);
    });
    return h("li", null, link);
  }
}
