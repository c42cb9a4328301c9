// @ts-check
// The timeline of a run: turns as bands, calls as bars in lanes. Only the visible part is drawn.

import { h, inside, perFrame, setText } from "../../dom.js";
import { boxOf, boxShare, boxWords, firstInSight, neighbour, same } from "./boxes.js";
import { RunModel, until } from "./model.js";
import { gathered, tickLabel, ticks } from "./scale.js";

/**
 * An element that remembers what it shows, so that it is only touched if that changes.
 * @typedef {HTMLElement
 *   & {moved?: string, sized?: string, share?: string, box?: GatheredBox}} Drawn
 */

const AXIS = 24, BAND = 30, LANE = 28, PAD = 8, MAX_LANES = 8;
const MAX_WIDTH = 4_000_000; // pixels; browsers fail to lay out more

/** A timeline. `onSelect({kind, place})` is called on selection, `onLook()` on scroll or zoom. */
export class Timeline {
  /**
   * @param {{label: string, onSelect: (selected: Selected) => void, onLook?: () => void}} options
   */
  constructor({ label, onSelect, onLook = () => {} }) {
    this.onSelect = onSelect;
    this.onLook = onLook;
    /** @type {number|null} */
    this.scale = null; // pixels per second; null: fit the whole run
    this.wide = 0; // of the window, in pixels; cached, because reading it forces a layout
    this.following = true;
    /** @type {Selected|null} */
    this.selected = null;
    /** @type {Selected|null} */
    this.wanted = null; // gets the focus once it is drawn
    this.run = new RunModel();
    this.now = 0;
    this.lanes = 0;
    this.total = 1;
    /** @type {number|null} */
    this.headAt = null;
    this.size = "";
    /** @type {Box[]} */
    this.bars = [];
    /** @type {Map<string, HTMLElement>} */
    this.drawn = new Map();
    this.marks = h("div", { class: "tl-marks", "aria-hidden": "true" });
    this.items = h("div", { role: "list", "aria-label": `${label}: turns and calls in order` });
    this.head = h("div", { class: "tl-head", "aria-hidden": "true", hidden: true });
    this.inner = h("div", { class: "tl-inner" }, this.marks, this.items, this.head);
    this.element = h("div", { class: "tl", tabindex: "0", role: "region", "aria-label": label,
      "aria-describedby": "tl-keys" }, this.inner);
    this.redraw = perFrame(() => this.draw());
    const { element } = this;
    element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    element.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
    element.addEventListener("keydown", (event) => this.pressed(event));
    this.items.addEventListener("click", (event) => {
      const box = /** @type {Drawn|null} */ (inside(event, "button"))?.box;
      if (box) this.choose(box);
    });
    this.sizes = new ResizeObserver(() => { this.wide = element.clientWidth; this.redraw(); });
    this.sizes.observe(element);
  }

  /** Stop watching sizes. */
  close() {
    this.sizes.disconnect();
  }

  /**
   * Show a run.
   * `now` is the current time, `total` the seconds of the axis, `head` the replay position or null.
   * @param {RunModel} run
   * @param {{now: number, total: number, lanes?: number, head?: number|null}} options
   */
  set(run, { now, total, lanes = run.lanes.length, head = null }) {
    const played = head !== this.headAt ? head : null;
    this.run = run;
    this.now = now;
    this.lanes = lanes;
    this.total = Math.max(total, 0.05);
    this.headAt = head;
    if (played !== null) this.keepInSight(played);
    this.draw();
  }

  /** @param {number} moment */
  keepInSight(moment) {
    if (this.scale === null || this.run.began === null) return;
    const left = (moment - this.run.origin) * this.pixels + PAD;
    const { scrollLeft } = this.element;
    this.following = false;
    if (left >= scrollLeft && left <= scrollLeft + this.wide - 20) return;
    this.resize();
    this.moveTo(left - this.wide * 0.2);
  }

  /**
   * Mark the selected item, and scroll to it.
   * @param {Selected|null} selected
   */
  select(selected, reveal = true) {
    this.selected = selected;
    if (selected && reveal) this.reveal(selected);
    this.redraw();
  }

  get fitting() {
    return Math.max(40, this.wide - 2 * PAD) / this.total;
  }

  get pixels() {
    const limit = MAX_WIDTH / this.total;
    return this.scale === null ? this.fitting : Math.min(Math.max(this.scale, this.fitting), limit);
  }

  /**
   * Zoom around a point of the window.
   * @param {number} factor
   */
  zoom(factor, x = this.wide / 2) {
    const before = this.pixels, at = (this.element.scrollLeft + x - PAD) / before;
    this.scale = before * factor;
    if (this.scale <= this.fitting * 1.01) this.scale = null;
    this.following = this.scale === null;
    this.resize();
    this.moveTo(at * this.pixels + PAD - x);
    this.onLook();
  }

  /** Fit the whole run. */
  fit() {
    this.scale = null;
    this.following = true;
    this.resize();
    this.redraw();
    this.onLook();
  }

  /** Scroll to the end, and follow it. */
  followEnd() {
    this.following = true;
    this.redraw();
    this.onLook();
  }

  /**
   * Show a range: seconds from the start.
   * @param {number} from @param {number} to
   */
  show(from, to) {
    const span = Math.max(to - from, 0.001);
    this.scale = (this.wide * 0.8) / span;
    if (this.scale <= this.fitting) this.scale = null;
    this.following = this.scale === null;
    this.resize();
    this.moveTo(from * this.pixels - this.wide * 0.1);
    this.onLook();
  }

  /** @param {number} left */
  moveTo(left) {
    this.element.scrollLeft = left;
    this.placed = this.element.scrollLeft;
    this.redraw();
  }

  scrolled() {
    this.redraw();
    const { scrollLeft, scrollWidth, clientWidth } = this.element;
    if (this.scale === null || Math.abs(scrollLeft - (this.placed ?? 0)) < 2) return;
    this.placed = scrollLeft;
    this.following = scrollLeft + clientWidth >= scrollWidth - 4;
    this.onLook();
  }

  /** @param {WheelEvent} event */
  wheeled(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const { left } = this.element.getBoundingClientRect();
    this.zoom(Math.exp(-event.deltaY / 300), event.clientX - left);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { element } = this, page = this.wide * 0.8;
    /** @type {{[key: string]: () => void}} */
    const acts = {
      "+": () => this.zoom(1.6), "=": () => this.zoom(1.6), "-": () => this.zoom(1 / 1.6),
      0: () => this.fit(), ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1),
      Home: () => this.step(-Infinity), End: () => this.step(Infinity),
      PageDown: () => { element.scrollLeft += page; },
      PageUp: () => { element.scrollLeft -= page; },
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  /**
   * Select the next or previous item, and scroll to it.
   * @param {number} by
   */
  step(by) {
    const next = neighbour(this.run, this.selected, by);
    if (!next) return;
    this.wanted = next;
    this.reveal(next);
    this.onSelect(next);
  }

  /** @param {GatheredBox} box */
  choose(box) {
    if (box.many.length === 1) return this.onSelect(box.many[0].what);
    this.show(box.many[0].from, Math.max(...box.many.map((one) => one.to)));
  }

  /** @param {Selected} options */
  reveal({ kind, place }) {
    const began = kind === "turn" ? this.run.turns[place]?.startedAt : this.run.calls[place]?.from;
    if (began === undefined || began === null || this.scale === null) return;
    const left = (began - this.run.origin) * this.pixels + PAD;
    const { scrollLeft } = this.element;
    if (left < scrollLeft || left > scrollLeft + this.wide - 40) {
      this.following = false;
      this.moveTo(left - this.wide * 0.25);
    }
  }

  resize() {
    const lanes = Math.max(this.lanes || 0, 1);
    /** @param {number} rows */
    const tall = (rows) => `${AXIS + BAND + rows * LANE + 4}px`;
    const whole = this.scale === null ? "100%" : `${this.total * this.pixels + 2 * PAD}px`;
    const key = `${whole} ${lanes}`;
    if (key === this.size) return;
    this.size = key;
    this.inner.style.setProperty("width", whole);
    this.inner.style.setProperty("height", tall(lanes));
    this.element.style.setProperty("height", `calc(${tall(Math.min(lanes, MAX_LANES))} + 14px)`);
  }

  /** Draw the visible part. */
  draw() {
    if (this.run.began === null || !this.wide) return;
    this.resize();
    const { element } = this;
    if (this.following && this.scale !== null) {
      element.scrollLeft = element.scrollWidth;
      this.placed = element.scrollLeft;
    }
    const scale = this.pixels, margin = 40 / scale;
    const left = this.scale === null ? 0 : element.scrollLeft;
    const from = (left - PAD) / scale - margin, to = (left + this.wide - PAD) / scale + margin;
    this.drawMarks(from, to, scale);
    this.drawItems(from, to, scale);
    this.head.hidden = this.headAt === null;
    if (this.headAt !== null) moved(this.head, PAD + (this.headAt - this.run.origin) * scale);
  }

  /** @param {number} from @param {number} to @param {number} scale */
  drawMarks(from, to, scale) {
    const { step, found } = ticks(Math.max(0, from), Math.min(to, this.total), scale);
    const pauses = this.run.pauses.map((one) => ({ from: one.from - this.run.origin,
      to: (one.to === null ? this.now : one.to) - this.run.origin }))
      .filter((one) => one.to >= from && one.from <= to);
    const all = [
      ...found.map((at) => ({ name: "tl-tick", at, text: tickLabel(at, step), width: 0 })),
      ...pauses.map((one) => ({ name: "tl-pause", at: one.from, text: "waiting",
        width: (one.to - one.from) * scale }))];
    while (this.marks.children.length > all.length) this.marks.lastChild?.remove();
    all.forEach(({ name, at, text, width }, place) => {
      const mark = /** @type {Drawn} */ (this.marks.children[place]
        || this.marks.appendChild(h("div")));
      if (mark.className !== name) mark.className = name;
      setText(mark, text);
      moved(mark, PAD + at * scale);
      sized(mark, width);
    });
  }

  /** @param {number} from @param {number} to @param {number} scale */
  drawItems(from, to, scale) {
    const boxes = [...gathered(this.bands(from, to, scale)), ...gathered(this.bars)];
    boxes.sort((a, b) => a.order - b.order);
    const wanted = new Map();
    for (const box of boxes) {
      box.left = Math.max(box.left, from * scale); // invisible parts are not painted
      box.right = Math.min(box.right, to * scale);
      wanted.set(box.key, this.placeBox(box, this.drawn.get(box.key)));
    }
    for (const [key, item] of this.drawn) if (!wanted.has(key)) item.remove();
    let place = this.items.firstChild;
    for (const item of wanted.values()) { // in order, for screen readers
      if (item === place) place = item.nextSibling; else this.items.insertBefore(item, place);
    }
    this.drawn = wanted;
    this.roving(boxes);
  }

  /**
   * The boxes of the visible turns; those of their calls go into `bars`.
   * @param {number} from @param {number} to @param {number} scale @returns {Box[]}
   */
  bands(from, to, scale) {
    const { run, now } = this;
    /** @type {Box[]} */
    const found = [];
    this.bars = [];
    for (let place = firstInSight(run, from, now); place < run.turns.length; place += 1) {
      const turn = run.turns[place], began = turn.startedAt - run.origin;
      if (began > to) break;
      const ends = (turn.repliedAt ?? (turn.endedAt === null ? now : turn.endedAt)) - run.origin;
      if (ends >= from) found.push(boxOf("turn", turn, "band", began, ends, scale));
      for (const number of turn.calls) {
        const call = run.calls[number];
        if (call.from === null) continue;
        const box = boxOf("call", call, call.lane, call.from - run.origin,
          until(call, now) - run.origin, scale);
        if (box.to >= from && box.from <= to) this.bars.push(box);
      }
    }
    this.bars.sort((a, b) => a.left - b.left);
    return found;
  }

  /** @param {GatheredBox} box @param {HTMLElement} [item] */
  placeBox(box, item) {
    const made = item || h("div", { role: "listitem" },
      h("button", { type: "button", tabindex: "-1" }, h("span", null)));
    const press = /** @type {Drawn} */ (made.firstElementChild);
    press.box = box;
    const [name, label, text] = boxWords(this.run, box);
    if (press.className !== name) press.className = name;
    if (press.title !== label) { press.title = label; press.setAttribute("aria-label", label); }
    setText(press.firstChild, box.right - box.left > 22 ? text : "");
    const top = box.row === "band" ? AXIS + 2 : AXIS + BAND + box.row * LANE + 2;
    moved(press, PAD + box.left, top);
    sized(press, box.right - box.left);
    const share = boxShare(this.run, box, this.pixels);
    if (press.share !== share) press.style.setProperty("--share", press.share = share);
    const chosen = box.many.some((one) => same(one.what, this.selected));
    if (press.ariaPressed !== String(chosen)) press.ariaPressed = String(chosen);
    return made;
  }

  /**
   * The roving tabindex: the selected item, or the first.
   * @param {GatheredBox[]} boxes
   */
  roving(boxes) {
    const chosen = boxes.find((box) => box.many.some((one) => same(one.what, this.selected)));
    const first = chosen || boxes[0];
    for (const box of boxes) {
      const press = this.pressOf(box), index = box === first ? 0 : -1;
      if (press && press.tabIndex !== index) press.tabIndex = index;
    }
    if (this.wanted && chosen && same(this.wanted, this.selected)) {
      this.wanted = null;
      this.pressOf(chosen)?.focus({ preventScroll: true });
    }
  }

  /** @param {GatheredBox} box */
  pressOf(box) {
    return /** @type {Drawn|null|undefined} */ (this.drawn.get(box.key)?.firstElementChild);
  }
}

/** @param {Drawn} element @param {number} left @param {number|null} [top] */
function moved(element, left, top = null) {
  const value = top === null ? `translateX(${left.toFixed(1)}px)`
    : `translate(${left.toFixed(1)}px, ${top}px)`;
  if (element.moved !== value) element.style.setProperty("transform", element.moved = value);
}

/** @param {Drawn} element @param {number} width */
function sized(element, width) {
  const value = width ? `${width.toFixed(1)}px` : "";
  if (element.sized !== value) element.style.setProperty("width", element.sized = value);
}
