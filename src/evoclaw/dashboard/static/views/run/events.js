// @ts-check
// The list of a run's records.

import { h } from "../../dom.js";
import { VirtualList } from "../../list.js";
import { field, select } from "../../components.js";
import { clock } from "./scale.js";
import { isTrouble, says } from "./labels.js";

const HEIGHT = matchMedia("(max-width: 720px)").matches ? 41 : 30; // of a row, in pixels
const PIECES = new Set(["text_delta", "reasoning_delta", "call_output"]);
/** @type {{[kind: string]: [string, (record: Api.Record) => boolean]}} */
const KINDS = {
  facts: ["without streamed text", (record) => !PIECES.has(record.event.type)],
  all: ["all records", () => true],
  calls: ["calls", (record) => /^call_|^approval/.test(record.event.type)],
  trouble: ["problems", isTrouble],
};

/**
 * The list. `onSelect(record, number)` is called on selection; the number counts from 1.
 * `following`: scroll with the end until the user scrolls away.
 */
export class Events {
  /**
   * @param {Recording} recording @param {(record: Api.Record, number: number) => void} onSelect
   * @param {boolean} following
   */
  constructor(recording, onSelect, following) {
    this.recording = recording;
    this.onSelect = onSelect;
    /** @type {number|null} */
    this.position = null;
    this.seen = 0;
    this.following = following;
    /** @type {Api.Record|null} */
    this.chosen = null;
    /** @type {WeakMap<Api.Record, number>} */
    this.numbers = new WeakMap();
    this.fits = KINDS.facts[1];
    /** @type {Api.Record[]} */
    this.items = [];
    this.list = new VirtualList({ label: "records of the run", height: HEIGHT,
      render: (record) => this.row(record), key: (record) => record.seq });
    const { element } = this.list;
    element.addEventListener("keydown", (event) => this.pressed(event));
    element.addEventListener("scroll", () => { this.following = this.list.atEnd; },
      { passive: true });
    const choice = select(Object.entries(KINDS).map(([key, [text]]) => [key, text]), "facts",
      (kind) => this.use(kind));
    this.element = h("section", { class: "events", "aria-labelledby": "events-title" },
      h("div", { class: "row between" }, h("h2", { id: "events-title" }, "Records"),
        h("div", { class: "events-filter" }, field("Show", choice))), element);
  }

  /** Stop watching sizes. */
  close() {
    this.list.close();
  }

  /** @param {string} kind */
  use(kind) {
    this.fits = KINDS[kind][1];
    this.items = [];
    this.seen = 0;
    this.update(this.position);
  }

  /**
   * Add new records, and mark the position of the replay; null is the end.
   * @param {number|null} position
   */
  update(position) {
    const { records } = this.recording;
    const grew = records.length > this.seen;
    for (; this.seen < records.length; this.seen += 1) {
      const record = records[this.seen];
      this.numbers.set(record, this.seen + 1);
      if (this.fits(record)) this.items.push(record);
    }
    const moved = position !== this.position;
    this.position = position;
    const follow = this.following && position === null;
    if (grew || moved) this.list.set(this.items);
    if (grew && follow) this.toEnd();
    if (moved) this.mark();
    if (moved && position !== null) this.list.scrollTo(this.before(position));
  }

  /** @param {Api.Record} record */
  number(record) {
    return this.numbers.get(record) ?? 0;
  }

  toEnd() {
    this.list.draw();
    this.list.element.scrollTop = this.list.element.scrollHeight;
  }

  /**
   * The index of the last listed record up to a position.
   * @param {number} position
   */
  before(position) {
    let low = 0, high = this.items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.number(this.items[middle]) <= position) low = middle + 1; else high = middle;
    }
    return Math.max(0, low - 1);
  }

  /**
   * Select a record.
   * @param {Api.Record|null} record
   */
  select(record) {
    this.chosen = record;
    this.mark();
  }

  mark() {
    for (const { item, element } of this.list.drawn.values()) this.dress(element, item);
  }

  /** @param {HTMLElement} element @param {Api.Record} record */
  dress(element, record) {
    const number = this.number(record);
    element.classList.toggle("later", this.position !== null && number > this.position);
    element.classList.toggle("here", this.position !== null && number === this.position);
    element.firstElementChild?.setAttribute("aria-pressed", String(record === this.chosen));
  }

  /** @param {Api.Record} record */
  row(record) {
    const [name, text] = says(record), number = this.number(record);
    const elapsed = `+${clock(record.at - this.recording.records[0].at)}`;
    const trouble = isTrouble(record);
    const element = h("div", { class: `event ${trouble ? "trouble" : ""}` },
      h("button", { type: "button", tabindex: "-1", class: "plain",
        on: { click: () => this.onSelect(record, number) } },
      h("span", { class: "event-number" }, number), h("span", { class: "event-at" }, elapsed),
      h("span", { class: "event-name" }, trouble && h("span", { "aria-hidden": "true" }, "▲ "),
        name), h("span", { class: "event-text" }, text)));
    this.dress(element, record);
    return element;
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (!by || !this.items.length) return;
    event.preventDefault();
    const at = this.chosen ? this.items.indexOf(this.chosen) : -1;
    const next = Math.min(this.items.length - 1, Math.max(0, at < 0 ? 0 : at + by));
    const record = this.items[next];
    this.list.scrollTo(next);
    this.list.draw();
    this.onSelect(record, this.number(record));
    const row = this.list.drawn.get(record.seq)?.element;
    row?.querySelector("button")?.focus({ preventScroll: true });
  }
}
