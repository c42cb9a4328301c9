// @ts-check
// The canvas: content that a model wrote, in a sandboxed frame without network access.

import { get } from "../../api.js";
import { announce, h, onAbort, oneLine, replace } from "../../dom.js";
import { button } from "../../components.js";

const WIDTH = "evoclaw.canvas.width";
const CLOSED = "evoclaw.canvas.closed"; // the time of the canvas that the user closed
const MIN_WIDTH = 260;
const ROOMY = 1100; // window width in pixels from which the canvas opens beside the chat

/** The panel; `onChange()` is called when the canvas appears or disappears. */
export class Canvas {
  /**
   * @param {string} sessionId @param {AbortSignal} signal
   * @param {(problem?: Error) => void} onChange
   */
  constructor(sessionId, signal, onChange) {
    this.sessionId = sessionId;
    this.signal = signal;
    this.onChange = onChange;
    this.width = 0;
    /** @type {Api.CanvasView|null} */
    this.sheet = null;
    this.heading = h("h3", null, "Canvas");
    this.stage = h("div", { class: "stage" });
    this.grip = h("div", { class: "grip", role: "separator", tabindex: "0",
      "aria-orientation": "vertical", "aria-label": "Width of the canvas" });
    this.element = h("aside", { class: "canvas", hidden: true, "aria-label": "Canvas" }, this.grip,
      h("div", { class: "inner" },
        h("header", { class: "row between" }, this.heading,
          button("Close", () => this.close())), this.stage));
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
    this.grip.addEventListener("pointerdown", (event) => this.drag(event));
    this.grip.addEventListener("keydown", (event) => this.nudge(event));
    this.resize(Number(sessionStorage.getItem(WIDTH)) || window.innerWidth * 0.3);
    onAbort(signal, () => this.unframe());
  }

  /**
   * Load the canvas; `fresh`: it has just changed, so open it.
   * @param {boolean} fresh
   */
  async load(fresh) {
    let sheet = null;
    try {
      sheet = await get(`/v1/sessions/${this.sessionId}/canvas`, null, { signal: this.signal });
    } catch (cause) {
      if (cause.name === "AbortError") return;
      if (cause.status !== 404) {
        this.onChange(cause);
        return;
      }
    }
    const same = sheet && this.sheet && sheet.at === this.sheet.at;
    this.sheet = sheet;
    const roomy = window.innerWidth >= ROOMY
      && sessionStorage.getItem(CLOSED) !== String(sheet?.at);
    if (!sheet) this.hide();
    else if ((fresh || roomy) && !same) this.open(true);
    else if (!this.element.hidden && !same) this.draw();
    this.onChange();
  }

  /** Show the panel. */
  open(byItself = false) {
    if (!this.sheet) return;
    this.element.hidden = false;
    this.draw();
    this.onChange();
    if (byItself) announce(`The canvas shows ${oneLine(this.sheet.title || "new content", 80)}`);
    else this.element.querySelector("button")?.focus();
  }

  /** The user closes it: it stays closed until its content changes. */
  close() {
    sessionStorage.setItem(CLOSED, String(this.sheet?.at));
    this.hide();
  }

  /** Hide it, and remove the frame. */
  hide() {
    if (this.element.hidden) return;
    const had = this.element.contains(document.activeElement);
    this.element.hidden = true;
    this.unframe();
    this.onChange();
    if (had) document.getElementById("canvas-button")?.focus();
  }

  unframe() {
    this.hush?.abort();
    replace(this.stage);
  }

  /** Create a new frame for each content, so that nothing of the old one remains. */
  draw() {
    this.unframe();
    const { sheet } = this;
    if (!sheet) return;
    replace(this.heading, oneLine(sheet.title || "Canvas", 80));
    const frame = h("iframe", { src: "/ui/frame.html", sandbox: "allow-scripts",
      referrerpolicy: "no-referrer", title: `Canvas: ${oneLine(sheet.title || "untitled", 80)}` });
    const hush = this.hush = new AbortController();
    // The origin is opaque, so only the window identifies the sender. Only one message counts.
    window.addEventListener("message", ({ source, data }) => {
      if (source !== frame.contentWindow || data !== "evoclaw:ready") return;
      hush.abort();
      frame.contentWindow?.postMessage({ format: sheet.format, content: sheet.content }, "*");
    }, { signal: hush.signal });
    this.stage.append(frame);
  }

  /** @param {number} width */
  resize(width) {
    const maxWidth = Math.max(MIN_WIDTH, window.innerWidth - 620);
    this.width = Math.round(Math.min(maxWidth, Math.max(MIN_WIDTH, width)));
    this.element.style.setProperty("--width", `${this.width}px`);
    this.grip.setAttribute("aria-valuenow", String(this.width));
    this.grip.setAttribute("aria-valuemin", String(MIN_WIDTH));
    this.grip.setAttribute("aria-valuemax", String(maxWidth));
    sessionStorage.setItem(WIDTH, String(this.width));
  }

  /** @param {PointerEvent} event */
  drag(event) {
    event.preventDefault();
    this.grip.setPointerCapture(event.pointerId);
    this.element.dataset.dragged = "true"; // a frame would swallow the pointer
    const from = event.clientX, width = this.width;
    /** @param {PointerEvent} moved */
    const move = (moved) => this.resize(width + from - moved.clientX);
    const stop = () => {
      delete this.element.dataset.dragged;
      this.grip.removeEventListener("pointermove", move);
    };
    this.grip.addEventListener("pointermove", move);
    this.grip.addEventListener("lostpointercapture", stop, { once: true });
  }

  /** @param {KeyboardEvent} event */
  nudge(event) {
    const step = { ArrowLeft: 40, ArrowRight: -40 }[event.key];
    if (!step) return;
    event.preventDefault();
    this.resize(this.width + step);
  }
}
