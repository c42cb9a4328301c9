// @ts-check
// The message input: drafts are stored, and a message never starts two runs.

import { h, replace, setText } from "../../dom.js";
import { busy, button } from "../../components.js";
import { Attachments } from "./attachments.js";
import { withFiles } from "./files.js";

const MAX_HEIGHT = 220; // pixels

/** A new idempotency key. */
function newKey() {
  const parts = crypto.getRandomValues(new Uint32Array(4));
  return `page-${[...parts].map((one) => one.toString(16).padStart(8, "0")).join("")}`;
}

/** The unsent text of a session, and the idempotency key of its last attempt. */
class Draft {
  /** @param {string} sessionId */
  constructor(sessionId) {
    this.name = `evoclaw.draft.${sessionId || "new"}`;
    this.trial = `evoclaw.trial.${sessionId || "new"}`;
  }

  get text() { return sessionStorage.getItem(this.name) || ""; }

  /** @param {string} value */
  set text(value) {
    if (value) sessionStorage.setItem(this.name, value);
    else sessionStorage.removeItem(this.name);
  }

  /**
   * The key for a message: that of the last attempt if the message is the same.
   * @param {string} text
   */
  key(text) {
    const tried = JSON.parse(sessionStorage.getItem(this.trial) || "null");
    if (tried && tried.text === text) return tried.key;
    const key = newKey();
    sessionStorage.setItem(this.trial, JSON.stringify({ text, key }));
    return key;
  }

  /** The message was accepted. */
  done() {
    sessionStorage.removeItem(this.trial);
    sessionStorage.removeItem(this.name);
  }
}

/**
 * Store a draft for a session that is about to be opened.
 * @param {string} sessionId @param {string} text
 */
export function leaveDraft(sessionId, text) {
  new Draft(sessionId).text = text;
}

/**
 * @typedef {object} ComposerOptions
 * @property {(text: string, key: string, how: string, images: Api.AttachedImage[]) =>
 *   Promise<void>} send `how` is `say`, `steer` or `queue`
 * @property {() => unknown} stop
 * @property {HTMLElement} [before] the element before the buttons
 */

/** The input form. */
export class Composer {
  /** @param {string} sessionId @param {ComposerOptions} options */
  constructor(sessionId, { send, stop, before }) {
    this.send = send;
    this.draft = new Draft(sessionId);
    this.mode = "say";
    this.input = h("textarea", { rows: "1", id: "composer", value: this.draft.text,
      "aria-describedby": "composer-hint", placeholder: "Write what you want done" });
    this.label = h("label", { class: "unseen", for: "composer" }, "Message");
    this.problem = h("p", { class: "bad-text small", role: "alert", hidden: true });
    this.go = h("button", { class: "primary", type: "submit" }, "Send");
    this.queue = button("Queue", () => this.submit("queue"),
      { title: "Send it as the next message, once this run has ended" });
    this.stop = button("Stop", stop, { tone: "danger", title: "Cancel the run" });
    this.hint = h("span", { class: "unseen", id: "composer-hint" },
      "Enter sends, Shift+Enter starts a new line");
    this.attachments = new Attachments((problem) => this.setProblem(problem));
    const { element: attached, button: attach, chooser } = this.attachments;
    this.attach = attach;
    this.element = h("form", { class: "composer" }, this.problem, this.label,
      h("div", { class: "box" }, attached, this.input, h("div", { class: "row" }, before, this.hint,
        attach, chooser, h("span", { class: "grow" }), this.stop, this.queue, this.go)));
    this.attachments.listen(this.element);
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit(this.mode);
    });
    this.input.addEventListener("input", () => this.typed());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.show(null);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.submit(this.mode);
  }

  typed() {
    this.draft.text = this.input.value;
    this.fit();
  }

  /** Fit the height to the text, up to a limit. */
  fit() {
    this.input.style.setProperty("height", "auto");
    const wanted = Math.min(MAX_HEIGHT, this.input.scrollHeight + 2);
    this.input.style.setProperty("height", `${wanted}px`);
  }

  /**
   * Show the buttons for the state of the current run, or for none.
   * @param {string|null} state
   */
  show(state) {
    this.mode = state ? "steer" : "say";
    setText(this.go, state ? "Steer" : "Send");
    setText(this.label, state ? "Message that steers the run" : "Message");
    this.input.placeholder = state ? "Steer the run: the model reads this before its next step"
      : "Write what you want done";
    this.stop.hidden = this.queue.hidden = !state;
  }

  /**
   * Show a problem above the input; an empty text hides it.
   * @param {string} text
   */
  setProblem(text) {
    this.problem.hidden = !text;
    replace(this.problem, text);
  }

  /**
   * Set the text, for the user to edit.
   * @param {string} text
   */
  put(text) {
    this.input.value = text;
    this.typed();
    this.input.focus();
  }

  /** @param {string} how */
  async submit(how) {
    const typed = this.input.value.trim();
    const { images, texts } = this.attachments, text = withFiles(typed, texts);
    if (!text) {
      if (images.length) this.setProblem("Write a message to go with the picture.");
      return this.input.focus();
    }
    if (images.length && how === "steer") {
      return this.setProblem("Pictures cannot steer a run. Queue the message, or remove them.");
    }
    await busy(this.go, async () => {
      try {
        const named = images.length ? `${text}\n${images.map((one) => one.data.slice(-80))}` : text;
        await this.send(text, this.draft.key(named), how, images);
      } catch (cause) {
        if (cause.name === "AbortError") return;
        this.setProblem(`Not sent (${cause.message}). Your text is kept: send it again.`);
        return;
      }
      this.setProblem("");
      this.attachments.clear();
      this.draft.done();
      if (this.input.value.trim() === typed) this.input.value = "";
      this.typed();
    });
  }
}
