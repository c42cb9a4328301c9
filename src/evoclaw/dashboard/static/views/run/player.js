// @ts-check
// The replay controls of a run: play, speed, and a slider over its records.

import { h, inside, onAbort, setText } from "../../dom.js";
import { duration } from "../../format.js";
import { button, select } from "../../components.js";
import { says } from "./labels.js";

const SPEEDS = [["1", "1×"], ["4", "4×"], ["16", "16×"], ["max", "max"]];
const MAX_PAUSE_S = 3; // the longest pause between two records in a replay
const FRAMES = 240; // how many frames `max` takes for a whole run

/** The controls. `onMove(position)` is called on each move; null is the live end. */
export class Player {
  /**
   * @param {Recording} recording @param {(position: number|null) => void} onMove
   * @param {AbortSignal} signal
   */
  constructor(recording, onMove, signal) {
    this.recording = recording;
    this.onMove = onMove;
    /** @type {number|null} */
    this.position = null;
    this.waited = 0; // seconds since the current record
    this.before = 0; // the time of the last frame
    this.playing = false;
    this.speed = "4";
    this.play = button("▶ Play", () => this.toggle(), { label: "Replay the run" });
    this.range = h("input", { type: "range", min: "0", max: "0", step: "1",
      "aria-label": "Record", on: { input: () => this.go(Number(this.range.value)) } });
    this.where = h("span", { class: "small soft mono player-where" });
    this.back = button("To the end", () => this.go(null), { tone: "plain" });
    this.element = h("div", { class: "player", role: "group", "aria-label": "Replay" },
      this.play,
      h("label", { class: "player-speed" }, h("span", { class: "unseen" }, "Speed"),
        select(SPEEDS, this.speed, (value) => { this.speed = value; })),
      this.range, this.where, this.back);
    this.element.addEventListener("keydown", (event) => this.pressed(event));
    onAbort(signal, () => { this.playing = false; });
  }

  /** Seconds that were played since the current record. */
  get beyond() {
    return this.playing && this.position ? this.waited : 0;
  }

  get total() {
    return this.recording.records.length;
  }

  /**
   * Go to the state after `position` records; null or the last one is the end.
   * @param {number|null} position
   */
  go(position) {
    this.position = position === null || position >= this.total ? null : Math.max(0, position);
    this.waited = 0;
    if (this.position === null) this.playing = false;
    this.show();
    this.onMove(this.position);
  }

  toggle() {
    this.playing = !this.playing;
    if (!this.playing) return this.show();
    if (this.position === null) this.go(0);
    this.playing = true;
    this.waited = 0;
    this.show();
    this.before = performance.now();
    requestAnimationFrame((time) => this.frame(time));
  }

  /** @param {number} time */
  frame(time) {
    if (!this.playing) return;
    const elapsed = Math.max(0, time - this.before) / 1000;
    this.before = time;
    const next = this.speed === "max"
      ? (this.position ?? 0) + Math.max(1, Math.ceil(this.total / FRAMES))
      : this.later(elapsed * Number(this.speed));
    if (next !== this.position) this.move(next); else this.onMove(next); // the time advances
    if (this.playing) requestAnimationFrame((at) => this.frame(at));
  }

  /**
   * The position after so many more seconds.
   * @param {number} seconds
   */
  later(seconds) {
    const { records } = this.recording;
    let position = this.position ?? 0;
    this.waited += seconds;
    while (position < records.length) {
      const gap = position === 0 ? 0 : records[position].at - records[position - 1].at;
      const pause = Math.min(Math.max(gap, 0), MAX_PAUSE_S);
      if (this.waited < pause) break;
      this.waited -= pause;
      position += 1;
    }
    return position;
  }

  /** @param {number} next */
  move(next) {
    const { waited } = this;
    this.go(next);
    this.waited = waited;
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (inside(event, "select")) return;
    if (event.key === " " && !inside(event, "button")) {
      event.preventDefault();
      this.toggle();
    }
    const by = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    if (event.target !== this.range && by) {
      event.preventDefault();
      this.go((this.position ?? this.total) + by);
    }
  }

  /** Show the position. */
  show() {
    const { total } = this, at = this.position ?? total;
    if (this.range.max !== String(total)) this.range.max = String(total);
    if (this.range.value !== String(at)) this.range.value = String(at);
    const record = at ? this.recording.records[at - 1] : null;
    const elapsed = record ? duration(record.at - this.recording.records[0].at) : "0 s";
    setText(this.where, `${at} / ${total} · ${elapsed}`);
    const text = `record ${at} of ${total}, ${elapsed}${record ? `, ${says(record)[0]}` : ""}`;
    this.range.setAttribute("aria-valuetext", text);
    setText(this.play, this.playing ? "❚❚ Pause" : "▶ Play");
    this.play.setAttribute("aria-label", this.playing ? "Pause" : "Replay the run");
    this.back.hidden = this.position === null;
  }
}
