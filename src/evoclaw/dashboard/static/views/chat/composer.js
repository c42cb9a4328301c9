// Where a person writes: drafts are kept, and what was sent is never begun twice.

import { h, replace, setText } from "../../dom.js";
import { busy, button } from "../../parts.js";

const TALLEST = 220; // pixels

/** A new key: the same again gives the same run. */
function newKey() {
  const parts = crypto.getRandomValues(new Uint32Array(4));
  return `page-${[...parts].map((one) => one.toString(16).padStart(8, "0")).join("")}`;
}

/** What was typed in a session and not sent, and the key under which it was tried. */
class Draft {
  constructor(sessionId) {
    this.name = `evoclaw.draft.${sessionId || "new"}`;
    this.trial = `evoclaw.trial.${sessionId || "new"}`;
  }

  get text() { return sessionStorage.getItem(this.name) || ""; }

  set text(value) {
    if (value) sessionStorage.setItem(this.name, value);
    else sessionStorage.removeItem(this.name);
  }

  /** The key for a text: that of the last trial if it was the same text. */
  key(text) {
    const tried = JSON.parse(sessionStorage.getItem(this.trial) || "null");
    if (tried && tried.text === text) return tried.key;
    const key = newKey();
    sessionStorage.setItem(this.trial, JSON.stringify({ text, key }));
    return key;
  }

  /** It was taken. */
  done() {
    sessionStorage.removeItem(this.trial);
    sessionStorage.removeItem(this.name);
  }
}

/** Keep a draft for a session that is about to be opened. */
export function leaveDraft(sessionId, text) {
  new Draft(sessionId).text = text;
}

/**
 * The box at the foot.
 * @param {object} options `send(text, key, how)`, `how` being `say`, `steer` or `queue`;
 *   `stop()`; `before`, what stands before the buttons.
 */
export class Composer {
  constructor(sessionId, { send, stop, before }) {
    Object.assign(this, { send, draft: new Draft(sessionId), mode: "say" });
    this.input = h("textarea", { rows: "1", id: "composer", value: this.draft.text,
      "aria-describedby": "composer-hint", placeholder: "Say what is to be done" });
    this.label = h("label", { class: "unseen", for: "composer" }, "Message");
    this.problem = h("p", { class: "bad-text small", role: "alert", hidden: true });
    this.go = h("button", { class: "primary", type: "submit" }, "Send");
    this.queue = button("Queue", () => this.submit("queue"),
      { title: "Say it as the next message, once this run has ended" });
    this.stop = button("Stop", stop, { tone: "danger", title: "Cancel the run" });
    this.hint = h("span", { class: "unseen", id: "composer-hint" },
      "Enter sends, Shift and Enter begin a new line");
    this.element = h("form", { class: "composer" }, this.problem, this.label,
      h("div", { class: "box" }, this.input, h("div", { class: "row" }, before, this.hint,
        h("span", { class: "grow" }), this.stop, this.queue, this.go)));
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit(this.mode);
    });
    this.input.addEventListener("input", () => this.typed());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.show(null);
  }

  key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.submit(this.mode);
  }

  typed() {
    this.draft.text = this.input.value;
    this.fit();
  }

  /** As tall as what is in it, up to a point. */
  fit() {
    this.input.style.setProperty("height", "auto");
    const wanted = Math.min(TALLEST, this.input.scrollHeight + 2);
    this.input.style.setProperty("height", `${wanted}px`);
  }

  /** A run goes on (its state), or none does. */
  show(state) {
    this.mode = state ? "steer" : "say";
    setText(this.go, state ? "Steer" : "Send");
    setText(this.label, state ? "Message that steers the run" : "Message");
    this.input.placeholder = state ? "Steer it: it hears this before its next step"
      : "Say what is to be done";
    this.stop.hidden = this.queue.hidden = !state;
  }

  /** Put a text in, for a person to change. */
  put(text) {
    this.input.value = text;
    this.typed();
    this.input.focus();
  }

  async submit(how) {
    const text = this.input.value.trim();
    if (!text) return this.input.focus();
    await busy(this.go, async () => {
      try {
        await this.send(text, this.draft.key(text), how);
      } catch (cause) {
        if (cause.name === "AbortError") return;
        this.problem.hidden = false;
        replace(this.problem, `Not sent (${cause.message}). Your words are kept: send them again.`);
        return;
      }
      this.problem.hidden = true;
      this.draft.done();
      if (this.input.value.trim() === text) this.input.value = "";
      this.typed();
    });
  }
}
