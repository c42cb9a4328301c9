// @ts-check
// A conversation: its history, its live runs, and scrolling that follows the end.

import { get, post, postEmpty } from "../../api.js";
import { announce, h, inside, onAbort, replace, ticking } from "../../dom.js";
import { on, runs } from "../../live.js";
import { button, failed, toast } from "../../components.js";
import { History } from "./history.js";
import { LiveRun } from "./run.js";

/**
 * The actions of the whole view: see chat.js.
 * @typedef {object} ChatView
 * @property {(conversation: Conversation) => void} stateChanged
 * @property {(fresh: boolean) => void} canvasChanged
 * @property {ChatActions["branch"]} branch
 * @property {ChatActions["again"]} again
 * @property {() => void} reopen
 * @property {() => void} focusComposer
 */

const NEAR = 40; // pixels from the end that still count as at the end

/** One session. */
export class Conversation {
  /** @param {Api.SessionView} session @param {ChatView} view @param {AbortSignal} signal */
  constructor(session, view, signal) {
    this.session = session;
    this.view = view;
    this.signal = signal;
    /** @type {LiveRun[]} */
    this.live = [];
    /** @type {Set<string>} */
    this.seen = new Set();
    this.pumping = false;
    /** @type {Api.RunView|null} */
    this.last = null; // the newest run of the history
    this.before = { top: 0, height: 0 };
    this.stuck = true;
    this.opened = Date.now() / 1000;
    this.act = this.actions();
    this.history = new History(session.id, this.act, signal);
    this.runs = h("div", { class: "history" });
    this.inner = h("div", { class: "inner" }, h("div", { class: "row older" }, this.history.older),
      this.history.element, this.runs);
    this.log = h("div", { class: "log", tabindex: "0", role: "log", "aria-live": "off",
      "aria-label": "Conversation" }, this.inner);
    this.below = button("↓ New messages", () => this.toEnd(), { tone: "below" });
    this.below.hidden = true;
    this.element = h("div", { class: "talk" }, this.log, this.below);
    this.watchPlace();
  }

  /**
   * The actions that the parts of the conversation can call.
   * @returns {ChatActions}
   */
  actions() {
    return {
      changed: () => this.view.stateChanged(this),
      grew: () => { if (!this.stuck) this.below.hidden = false; },
      cut: (number) => this.history.cut(number),
      canvas: (fresh) => this.view.canvasChanged(fresh),
      branch: (number, role, text) => this.view.branch(number, role, text),
      copy: (text, place) => this.copy(text, place),
      again: (asked) => this.view.again(asked),
      isFresh: (at) => at > this.opened - 2,
      keepingPlace: (work) => this.keepingPlace(work),
    };
  }

  /** @param {string} text @param {HTMLElement} place */
  async copy(text, place) {
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied");
    } catch {
      getSelection()?.selectAllChildren(place);
      toast("Selected. Press Ctrl+C or ⌘C to copy it.");
    }
  }

  /** Load the history, and follow the open runs. */
  async begin() {
    try {
      const found = await this.history.load();
      for (const run of found) this.seen.add(run.run_id);
      this.last = found[0] || null;
      for (const run of found.filter((one) => one.state !== "ended").reverse()) this.add(run);
    } catch (cause) {
      if (cause.name === "AbortError" || this.signal.aborted) return;
      replace(this.inner, failed(cause, () => this.view.reopen()));
      return;
    }
    on("runs", (items) => this.onRuns(items), this.signal);
    this.onRuns([...runs.values()]);
    on("approvals", () => this.look(), this.signal);
    on("questions", () => this.look(), this.signal);
    ticking(() => this.tick(), this.signal);
    this.view.stateChanged(this);
    this.toEnd();
  }

  /** The current run, or the first in the queue; null if there is none. */
  get current() { return this.live.find((one) => !one.ended) || null; }

  /** The view of the last run, for the line about its cost. */
  get lastRun() { return this.current?.view || this.live.at(-1)?.view || this.last || null; }

  /** @param {Api.RunView[]} items */
  onRuns(items) {
    const mine = items.filter((run) => run.session_id === this.session.id)
      .sort((a, b) => (a.began_at || 0) - (b.began_at || 0));
    for (const run of mine) {
      const known = this.live.find((one) => one.id === run.run_id);
      if (known) known.update(run);
      else if (this.isNew(run)) this.add(run);
    }
  }

  /**
   * Whether a run is not in the history: compared with its runs, as clocks may differ.
   * @param {Api.RunView} run
   */
  isNew(run) {
    if (this.seen.has(run.run_id)) return false;
    return run.state !== "ended" || (run.began_at || 0) >= (this.last?.began_at ?? 0);
  }

  /**
   * Add a run; runs are followed one after the other.
   * @param {Api.RunView} view
   */
  add(view) {
    const known = this.live.find((one) => one.id === view.run_id);
    if (known) return known;
    this.seen.add(view.run_id);
    const run = new LiveRun(view, this.act, () => this.view.focusComposer());
    this.live.push(run);
    this.runs.append(run.element);
    run.asking.update();
    this.pump();
    return run;
  }

  async pump() {
    if (this.pumping) return;
    this.pumping = true;
    try {
      for (let run = this.unwatched(); run && !this.signal.aborted; run = this.unwatched()) {
        run.watched = true;
        await run.follow(this.signal);
        this.look();
      }
    } finally {
      this.pumping = false;
    }
    this.view.stateChanged(this);
  }

  unwatched() { return this.live.find((one) => !one.watched); }

  look() {
    for (const run of this.live) if (!run.ended || run.asking.size) run.asking.update();
  }

  tick() {
    const now = Date.now() / 1000;
    for (const run of this.live) {
      if (run.ended && !run.asking.size) continue;
      run.tick(now);
      run.asking.tick(now);
    }
  }

  /**
   * Send a message: as a new run, or to steer the current run.
   * @param {string} text @param {string} key @param {string} how
   * @param {Api.AttachedImage[]} images
   */
  async say(text, key, how, images) {
    const { current, session, signal } = this;
    this.stuck = true;
    if (how === "steer" && current) {
      try {
        await post(`/v1/runs/${current.id}/messages`, { message: text }, { signal });
        if (!current.ended) current.steered(text);
        this.toEnd();
        return;
      } catch (cause) {
        if (cause.status !== 409) throw cause; // it has ended: send a new message instead
      }
    }
    const path = `/v1/sessions/${session.id}/messages`;
    const run = await post(path, { message: text, images }, { signal, key });
    this.add(run);
    this.toEnd();
  }

  /** Cancel the current run. */
  async stop() {
    const run = this.current;
    if (!run) return;
    await postEmpty(`/v1/runs/${run.id}/cancel`, { signal: this.signal });
    announce("stopping");
    run.update(await get(`/v1/runs/${run.id}`, null, { signal: this.signal }));
  }

  watchPlace() {
    this.log.addEventListener("scroll", () => this.placed(), { passive: true });
    // A user who opens a section wants to read it: stop following the end.
    this.log.addEventListener("click", (event) => {
      if (inside(event, "summary")) this.stuck = false;
    });
    const sizes = new ResizeObserver(() => {
      if (this.stuck) this.log.scrollTop = this.log.scrollHeight;
      this.placed();
    });
    sizes.observe(this.inner);
    sizes.observe(this.log);
    onAbort(this.signal, () => sizes.disconnect());
  }

  /** Check whether the end is visible: growth keeps following it, scrolling up does not. */
  placed() {
    const { scrollTop, clientHeight, scrollHeight } = this.log;
    const { top, height } = this.before;
    this.before = { top: scrollTop, height: scrollHeight };
    if (scrollTop + clientHeight >= scrollHeight - NEAR) this.stuck = true;
    else if (scrollTop < top - 1 && scrollHeight >= height) this.stuck = false;
    if (this.stuck) this.below.hidden = true;
  }

  /** Scroll to the end, and follow it. */
  toEnd() {
    this.stuck = true;
    this.below.hidden = true;
    this.log.scrollTop = this.log.scrollHeight;
  }

  /**
   * Insert content above the visible part without moving it.
   * @param {() => void} work
   */
  keepingPlace(work) {
    const mark = this.history.element.firstElementChild || this.runs;
    const before = mark.getBoundingClientRect().top;
    work();
    if (!this.stuck) this.log.scrollTop += mark.getBoundingClientRect().top - before;
  }
}
