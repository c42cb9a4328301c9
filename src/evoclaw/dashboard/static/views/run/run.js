// @ts-check
// One run: timeline, records and details; live, or as a replay.

import { follow, get } from "../../api.js";
import { h, onAbort, perFrame, replace, ticking } from "../../dom.js";
import { on } from "../../live.js";
import { button, failed, load, select } from "../../components.js";
import { RatingButtons } from "../../rating.js";
import { actions, forkDialog } from "./actions.js";
import { mountCompare } from "./compare.js";
import { Detail } from "./detail.js";
import { Events } from "./events.js";
import { Head } from "./head.js";
import { Recording } from "./model.js";
import { Player } from "./player.js";
import { Receipts } from "./receipts.js";
import { Timeline } from "./timeline.js";
import { callIdOf, OUTCOMES } from "./labels.js";

export const title = "Run";

const TICK = 200; // milliseconds between two redraws of a live run

/**
 * Show a run, or compare two.
 * @param {HTMLElement} root @param {string[]} args @param {AbortSignal} signal
 */
export async function mount(root, args, signal) {
  const [id, word, other] = args;
  if (word === "compare" && other) return mountCompare(root, id, other, signal);
  const path = `/v1/runs/${encodeURIComponent(id)}`;
  await load(root, () => get(path, null, { signal }),
    (view) => new RunPage(view, signal).element, signal);
}

/** The page of a run. */
export class RunPage {
  /** @param {Api.RatedRun} view @param {AbortSignal} signal */
  constructor(view, signal) {
    /** @type {Api.RunView} */
    this.view = view;
    this.signal = signal;
    /** @type {Selected|null} */
    this.selected = null;
    /** @type {Api.Record|null} */
    this.record = null;
    /** @type {number|null} */
    this.position = null;
    /** @type {HTMLElement|null} */
    this.stopButton = null;
    this.ended = false;
    this.detailKey = "";
    this.detailAt = 0;
    this.jump = select([["", "–"]], "", (place) => this.jumpTo(place));
    this.follow = button("Follow the end", () => this.timeline.followEnd(), { tone: "plain" });
    this.recording = new Recording();
    this.receipts = new Receipts(view.run_id, signal);
    this.ahead = 0; // seconds that the orchestrator's clock is ahead of the browser's
    this.draw = perFrame(() => { if (!signal.aborted) this.drawNow(); });
    this.rating = new RatingButtons(view.run_id, view.rating);
    this.head = new Head(view, signal);
    replace(this.head.actions, actions(this));
    this.timeline = new Timeline({ label: "Timeline", onSelect: (one) => this.select(one),
      onLook: () => this.showFollowing() });
    this.player = new Player(this.recording, (position) => this.move(position), signal);
    this.events = new Events(this.recording, (record, number) => this.choose(record, number),
      view.state !== "ended");
    this.detail = new Detail(this);
    this.problem = h("div", { class: "run-problem" });
    this.element = h("div", { class: "run-page" }, this.head.element, this.problem,
      this.timelineCard(), h("div", { class: "run-below" }, this.events.element,
        this.detail.element));
    this.begin();
  }

  timelineCard() {
    /** @param {string} text @param {number} factor @param {string} label */
    const zoom = (text, factor, label) =>
      button(text, () => this.timeline.zoom(factor), { label, title: label });
    return h("section", { class: "card tl-card", "aria-labelledby": "tl-title" },
      h("div", { class: "row between" }, h("h2", { id: "tl-title" }, "Timeline"),
        h("div", { class: "row tl-tools" }, this.follow,
          h("label", { class: "tl-jump" }, h("span", null, "Turn"), this.jump),
          zoom("−", 1 / 1.6, "Zoom out"), zoom("+", 1.6, "Zoom in"),
          button("Fit", () => this.timeline.fit(), { title: "All of it (0)" }))),
      this.timeline.element, legend(),
      h("p", { class: "unseen", id: "tl-keys" }, "Plus and minus zoom, 0 shows all, left and "
        + "right go from one turn or call to the next, Page up and Page down scroll."),
      this.player.element);
  }

  begin() {
    const { signal } = this;
    on("runs", (changed) => this.onRuns(changed), signal);
    ticking(() => { if (this.isLive) this.draw(); }, signal, TICK);
    onAbort(signal, () => {
      this.timeline.close();
      this.events.close();
    });
    this.watch();
  }

  async watch() {
    const { signal } = this, path = `/v1/runs/${encodeURIComponent(this.view.run_id)}/events`;
    const last = this.recording.records.at(-1);
    replace(this.problem);
    try {
      await follow(`${path}?follow=true`, { signal, after: last ? String(last.seq) : "",
        onEvent: (_type, record) => this.take(record) });
      if (!signal.aborted) this.over();
    } catch (cause) {
      if (!signal.aborted) replace(this.problem, failed(cause, () => this.watch()));
    }
  }

  /** @param {Api.Record} record */
  take(record) {
    if (!this.recording.add(record)) return;
    const ahead = record.at - Date.now() / 1000;
    if (ahead > this.ahead) this.ahead = ahead;
    this.draw();
  }

  /** @param {Api.RunView[]} changed */
  onRuns(changed) {
    const found = changed.find((one) => one.run_id === this.view.run_id);
    if (found) this.view = this.head.view = found;
    if (changed.some((one) => one.parent_run === this.view.run_id)) this.head.findChildren();
    this.draw();
  }

  /** The stream has ended: the run is over. */
  async over() {
    this.ended = true;
    this.draw();
  }

  get isLive() {
    const { finished } = this.recording.model;
    return !this.ended && (finished === null || finished.stop === "waiting");
  }

  /** The current time of a live run, or the end of an ended one. */
  get present() {
    const { model } = this.recording;
    const last = model.last ?? 0;
    return this.isLive && last ? Math.max(last, Date.now() / 1000 + this.ahead) : last;
  }

  /** @param {number|null} position */
  move(position) {
    this.position = position;
    this.draw();
  }

  /**
   * Select a turn or a call.
   * @param {Selected|null} selected @param {Api.Record|null} [record]
   */
  select(selected, record = null) {
    this.selected = selected;
    this.record = record;
    this.events.select(record);
    this.timeline.select(selected, record === null || Boolean(selected));
    this.draw();
  }

  /** @param {Api.Record} record @param {number} number */
  choose(record, number) {
    const { model } = this.recording;
    const call = model.callOf(callIdOf(record)), turn = model.turnAt(number);
    if (call) this.select({ kind: "call", place: call.place }, record);
    else this.select(turn && { kind: "turn", place: turn.place }, record);
  }

  /** @param {string} place */
  jumpTo(place) {
    const { model } = this.recording, turn = model.turns[Number(place)];
    if (place === "" || !turn) return;
    const from = turn.startedAt - model.origin;
    this.timeline.show(from, (turn.endedAt ?? this.present) - model.origin);
    this.select({ kind: "turn", place: turn.place });
  }

  /** @param {number} [turn] */
  fork(turn) {
    forkDialog(this, turn);
  }

  /** @param {Call} call @param {boolean} again */
  receiptsOf(call, again) {
    const { calls } = this.recording.model;
    return this.receipts.of(call, calls.filter((one) => one.result).length, again);
  }

  drawNow() {
    const { recording, position } = this, present = this.present;
    const past = position !== null;
    const run = past ? recording.at(position) : recording.model;
    const now = past ? (run.last ?? recording.model.began ?? 0) + this.player.beyond : present;
    const began = recording.model.began ?? 0;
    if (past && run.began === null) run.began = began; // no records yet, on the same axis
    this.timeline.set(run, { now, total: present - began, lanes: recording.model.lanes.length,
      head: past ? now : null });
    this.head.update(run, now, past);
    if (this.stopButton) this.stopButton.hidden = !this.isLive;
    this.rating.offer(!this.isLive);
    this.player.show();
    this.events.update(position);
    this.drawDetail(run);
    this.drawJump();
    this.showFollowing();
  }

  /**
   * Redraw a growing panel at most five times a second.
   * @param {RunModel} run
   */
  drawDetail(run) {
    const now = performance.now(), key = `${JSON.stringify(this.selected)} ${this.record?.seq}`;
    if (key === this.detailKey && now - this.detailAt < TICK && this.isLive) return;
    this.detailKey = key;
    this.detailAt = now;
    this.detail.update(run, this.selected, this.record);
  }

  drawJump() {
    const { turns } = this.recording.model;
    for (let place = this.jump.options.length - 1; place < turns.length; place += 1) {
      this.jump.append(h("option", { value: place }, turns[place].number));
    }
  }

  showFollowing() {
    const detached = this.isLive && !this.timeline.following;
    if (this.follow.hidden === detached) this.follow.hidden = !detached;
  }
}

function legend() {
  return h("ul", { class: "tl-legend", "aria-label": "Legend" },
    h("li", null, h("span", { class: "swatch thinks" }), "model is thinking"),
    h("li", null, h("span", { class: "swatch writes" }), "model is writing"),
    ["ok", "failed", "denied", "running", "waiting"].map((how) => h("li", null,
      h("span", { class: `swatch ${how}`, "aria-hidden": "true" }, OUTCOMES[how][1]),
      OUTCOMES[how][2])));
}
