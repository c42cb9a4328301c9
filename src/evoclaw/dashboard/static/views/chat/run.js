// @ts-check
// A live run: its event stream, rendered as elements.

import { follow, get, pause, postEmpty } from "../../api.js";
import { announce, h, oneLine, perFrame, replace } from "../../dom.js";
import { button, failed } from "../../components.js";
import { PendingRequests } from "./pending.js";
import {
  Reply, ending, queuedLine, loopMessage, picturesOf, ratingOf, userMessage, showsCanvas, textOf,
} from "./messages.js";

/**
 * A controller that aborts with a signal, or when the tab is hidden, to save connections.
 * @param {AbortSignal} signal
 */
function whileSeen(signal) {
  const made = new AbortController();
  const look = () => { if (document.hidden || signal.aborted) made.abort(); };
  document.addEventListener("visibilitychange", look, { signal: made.signal });
  signal.addEventListener("abort", look, { signal: made.signal });
  look();
  return made;
}

/**
 * Wait until the tab is visible.
 * @param {AbortSignal} signal
 */
function untilSeen(signal) {
  return /** @type {Promise<void>} */ (new Promise((resolve) => {
    const listening = new AbortController();
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      listening.abort();
      resolve();
    };
    document.addEventListener("visibilitychange", look, { signal: listening.signal });
    signal.addEventListener("abort", look, { signal: listening.signal });
    look();
  }));
}

/** A run that has not ended, or has just ended; `act` has the actions of the view. */
export class LiveRun {
  /** @param {Api.RatedRun} view @param {ChatActions} act @param {() => void} onNone */
  constructor(view, act, onNone) {
    this.view = view;
    this.rating = ratingOf(view);
    this.act = act;
    this.seq = 0;
    /** @type {number|null} */
    this.next = null; // the number of the next message, once it is known
    /** @type {Reply|null} */
    this.reply = null;
    this.watched = false;
    this.finished = false;
    /** @type {number|null} */
    this.opening = null; // how many messages the run started with
    this.lastText = "";
    /** @type {{text: string, element: HTMLElement}[]} */
    this.steers = [];
    this.turns = h("div", { class: "turns" });
    this.pending = h("div", { class: "turns" });
    this.waits = h("div", { class: "waits" });
    this.foot = h("div");
    this.element = h("section", { class: "run", "aria-label": oneLine(view.asked || "run", 60) },
      this.said = this.asked(), this.turns, this.pending, this.waits, this.foot);
    this.drawSoon = perFrame(() => this.reply?.draw());
    this.asking = new PendingRequests(this.waits, this.id, { onNew: () => act.grew(), onNone });
    this.shown();
  }

  get id() { return this.view.run_id; }

  get ended() { return this.view.state === "ended"; }

  asked() {
    const { asked } = this.view;
    if (!asked) return null;
    const tools = [button("Ask differently", () =>
      this.act.branch(this.start, "user", asked), { tone: "plain tiny",
      title: "Start a new session from here, with a different message" })];
    return userMessage(asked, { tools });
  }

  /** The number of the user message, once it is known. */
  get start() { return this.opening === null ? null : this.opening - 1; }

  /**
   * Update the view of the run.
   * @param {Api.RatedRun} view
   */
  update(view) {
    if (this.ended && view.state !== "ended") return; // the stream is newer
    this.view = { ...this.view, ...view };
    if (view.rating) this.rating.show(view.rating);
    this.shown();
  }

  shown() {
    this.element.dataset.state = this.view.state;
    const cancel = () => postEmpty(`/v1/runs/${this.id}/cancel`);
    replace(this.foot, this.view.state === "queued" ? queuedLine(cancel)
      : ending(this.view, this.finished ? this.reply : null, this.lastText, this.rating, this.act));
    this.act.changed();
  }

  /**
   * Follow the run until all its records came, also if the list of runs says that it has ended.
   * @param {AbortSignal} signal
   */
  async follow(signal) {
    const path = `/v1/runs/${this.id}/events?follow=true`;
    /** @param {string} type @param {Api.Record} record */
    const onEvent = (type, record) => this.take(type, record);
    try {
      for (let complete = false; !complete && !signal.aborted;) {
        const seen = whileSeen(signal), wasEnded = this.ended;
        let wasHidden = false;
        const after = this.seq ? String(this.seq) : "";
        await follow(path, { signal: seen.signal, onEvent, after })
          .finally(() => { wasHidden = seen.signal.aborted; seen.abort(); });
        if (signal.aborted) return;
        if (wasHidden) {
          await untilSeen(signal);
          continue;
        }
        this.update(await get(`/v1/runs/${this.id}`, null, { signal }));
        complete = this.finished || wasEnded;
        if (!this.ended) await pause(500, signal);
      }
    } catch (cause) {
      if (signal.aborted || cause.name === "AbortError") return;
      this.state("ended");
      replace(this.foot, failed(cause));
    }
    this.clearSteers();
  }

  /**
   * Apply one record.
   * @param {string} type @param {Api.Record} record
   */
  take(type, record) {
    if (record.seq <= this.seq) return;
    this.seq = record.seq;
    /** @type {any} */ (this)[`on_${type}`]?.(record.event, record.at);
    this.act.grew();
  }

  /** @param {Api.RunView["state"]} state */
  state(state, more = {}) {
    if (this.view.state === state && !Object.keys(more).length) return;
    this.view = { ...this.view, state, ...more };
    this.shown();
  }

  /** @param {EventOf<"run_started">} event */
  on_run_started(event) {
    this.opening = this.next = event.messages.length;
    const last = event.messages.at(-1);
    if (last?.role === "user") this.said?.firstElementChild?.append(...picturesOf(last));
    this.act.cut(this.start);
    this.state("running");
  }

  on_run_resumed() {
    this.state("running", { stop: null });
  }

  /** @param {EventOf<"turn_started">} options */
  on_turn_started({ turn }) {
    this.reply = null;
    this.open().setStatus("Waiting for the model…");
    this.state("running", { turns: Math.max(turn - 1, 0) });
  }

  /** The current reply. */
  open() {
    if (!this.reply) {
      this.reply = new Reply(this.id, this.act);
      this.turns.append(this.reply.element);
    }
    return this.reply;
  }

  /** @param {EventOf<"text_delta">} options */
  on_text_delta({ text }) {
    this.open().addText(text);
    this.drawSoon();
  }

  /** @param {EventOf<"reasoning_delta">} options */
  on_reasoning_delta({ text }) {
    this.open().addThought(text);
    this.drawSoon();
  }

  /** @param {EventOf<"reply_retried">} options */
  on_reply_retried({ reason, attempt, wait }) {
    const reply = this.open();
    reply.clear();
    reply.setStatus(`The reply broke off: ${oneLine(reason, 200)}. `
      + `Retrying (attempt ${attempt}${wait ? `, after ${Math.round(wait * 10) / 10} s` : ""})…`);
  }

  /** @param {EventOf<"reply_failed">} options */
  on_reply_failed({ reason }) {
    this.open().setStatus(`The model did not reply: ${oneLine(reason, 300)}`);
  }

  /** @param {EventOf<"replied">} options */
  on_replied({ reply }) {
    const number = this.next;
    if (this.next !== null) this.next += 1 + (reply.calls || []).length;
    this.open().whole(reply, number);
    if (reply.text) this.lastText = reply.text;
    const { usage = {}, cost } = reply;
    const { tokens_in = 0, tokens_out = 0 } = this.view;
    const known = this.view.cost === null || typeof cost !== "number" ? null
      : (this.view.cost || 0) + cost;
    this.state("running", { tokens_in: tokens_in + (usage.input || 0), cost: known,
      tokens_out: tokens_out + (usage.output || 0), turns: (this.view.turns || 0) + 1 });
  }

  /** @param {string} id */
  card(id) {
    return this.reply?.cards.get(id);
  }

  /** @param {EventOf<"call_judged">} event */
  on_call_judged(event) {
    this.card(event.call_id)?.judged(event);
  }

  /** @param {EventOf<"approval_answered">} event */
  on_approval_answered(event) {
    this.card(event.call_id)?.answered(event);
  }

  /** @param {EventOf<"call_started">} options @param {number} at */
  on_call_started({ call_id, machine }, at) {
    this.card(call_id)?.started(at, machine);
  }

  /** @param {EventOf<"call_delayed">} event @param {number} at */
  on_call_delayed(event, at) {
    this.card(event.call_id)?.delayed(event, at);
  }

  /** @param {EventOf<"call_output">} options */
  on_call_output({ call_id, text }) {
    this.card(call_id)?.output(text);
    this.drawSoon();
  }

  /** @param {EventOf<"call_finished">} options @param {number} at */
  on_call_finished({ result }, at) {
    this.card(result.call_id)?.finished(result, at);
    if (showsCanvas(result)) this.act.canvas(this.act.isFresh(at));
    this.state("running", { calls: (this.view.calls || 0) + 1 });
  }

  /** @param {EventOf<"prompted">} options */
  on_prompted({ message, why }) {
    const text = textOf(message);
    if (this.next !== null) this.next += 1;
    this.reply = null;
    this.turns.append(why === "steer" ? userMessage(text, { kind: "steer" })
      : loopMessage(text, why || ""));
    const read = this.steers.findIndex((steer) => steer.text === text);
    if (why === "steer" && read >= 0) this.steers.splice(read, 1)[0].element.remove();
  }

  on_context_trimmed() {
    this.turns.append(h("p", { class: "note soft small" },
      "Older messages were shortened for the model; the history here is complete."));
  }

  /** @param {EventOf<"run_finished">} event @param {number} at */
  on_run_finished(event, at) {
    const { stop, text, reason, turns, calls, usage = {}, cost } = event;
    const state = stop === "waiting" ? "waiting" : "ended";
    this.finished = state === "ended";
    this.reply?.draw();
    this.reply?.setStatus("");
    this.state(state, { stop, text, reason, turns: turns || 0, calls: calls || 0,
      tokens_in: usage.input || 0, tokens_out: usage.output || 0, cost: cost ?? null,
      ended_at: state === "ended" ? at : null });
    if (state !== "ended") return;
    this.clearSteers();
    if (!this.act.isFresh(at)) return;
    announce(stop === "completed" ? oneLine(text, 400) : `${stop}. ${oneLine(reason || "", 200)}`);
  }

  /**
   * A steering message; it is shown as pending until the model has read it.
   * @param {string} text
   */
  steered(text) {
    const element = userMessage(text, { kind: "steer" });
    element.classList.add("unheard");
    this.steers.push({ text, element });
    this.pending.append(element);
  }

  clearSteers() {
    for (const { element } of this.steers) element.remove();
    this.steers = [];
  }

  /**
   * Called once a second while calls run.
   * @param {number} now
   */
  tick(now) {
    for (const card of this.reply?.cards.values() || []) card.tick(now);
  }
}
