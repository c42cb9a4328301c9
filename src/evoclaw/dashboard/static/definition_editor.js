// @ts-check
// An editor for the TOML of an agent or a workflow: checked by the service before it is saved.

import { get, put } from "./api.js";
import { announce, h, replace } from "./dom.js";
import { may } from "./live.js";
import { button, confirmed, failed, missingScope, toast } from "./components.js";

/**
 * @typedef {object} EditorOptions
 * @property {string} path the address of the definition
 * @property {string} what such as "agent cook", for people
 * @property {AbortSignal} signal
 * @property {(saved: any) => void} saved called with the response of the service
 * @property {string} [template] the text of a new definition; without one, the text is loaded
 * @property {() => any} [missing] shown if there is no text to load
 */

/** Whether the token may save a definition. */
export const mayEdit = () => may("admin") && may("human");

/** The editor of one definition. */
export class DefinitionEditor {
  /** @param {EditorOptions} options */
  constructor(options) {
    this.options = options;
    this.sha256 = "";
    this.loaded = "";
    /** @type {Promise<unknown>} */
    this.loading = Promise.resolve(null);
    this.isMissing = false;
    this.element = h("div", { class: "definition" });
    this.area = h("textarea", { class: "mono definition-text", rows: "16", spellcheck: "false",
      autocapitalize: "off", autocomplete: "off", wrap: "off",
      "aria-label": `Definition of ${options.what}`, readonly: !mayEdit() });
    this.report = h("div", { class: "definition-report", role: "status" });
    this.area.addEventListener("input", () => replace(this.report));
  }

  /** Whether the text differs from what is stored. */
  get changed() {
    return this.area.value !== this.loaded;
  }

  /** The digest of the stored text, once it is loaded. */
  async digest() {
    await this.loading;
    if (this.sha256) return this.sha256;
    const { what } = this.options;
    throw new Error(this.isMissing ? `There is no stored definition of ${what}.`
      : `The definition of ${what} is not loaded. Reload the page and try again.`);
  }

  /**
   * Show the stored text, or the template of a new definition.
   * @returns {Promise<unknown>}
   */
  load() {
    this.loading = this.loadText();
    return this.loading;
  }

  /** @returns {Promise<unknown>} */
  async loadText() {
    const { path, template, signal, missing } = this.options;
    if (!may("admin")) {
      return replace(this.element,
        missingScope("see the definition", "admin"));
    }
    try {
      const found = template === undefined ? await get(path, null, { signal })
        : { text: template, sha256: "" };
      return this.use(found, template === undefined);
    } catch (cause) {
      if (cause.name === "AbortError" || signal.aborted) return null;
      this.isMissing = cause.status === 404;
      if (this.isMissing && missing) return replace(this.element, missing());
      return replace(this.element, failed(cause, () => this.load()));
    }
  }

  /** @param {{text: string, sha256: string}} found @param {boolean} stored */
  use(found, stored) {
    this.sha256 = found.sha256;
    this.area.value = found.text;
    this.loaded = stored ? this.area.value : "";
    this.area.rows = Math.min(30, Math.max(8, found.text.split("\n").length + 2));
    return replace(this.element, this.area, this.report, mayEdit() ? h("div", { class: "row" },
      button("Save", () => this.send(false), { tone: "primary" }),
      button("Check", () => this.send(true)),
      stored && button("Reload", () => this.loadAgain()))
      : h("p", { class: "soft small" },
        "Only a person may change it: your token lacks the scope 'human'."));
  }

  async loadAgain() {
    if (this.changed && await confirmed("Discard your changes?",
      "The editor is reset to the saved definition.", { action: "Discard" }) === null) return;
    await this.load();
    announce("Reloaded");
  }

  /** Check the text, and save it unless `dryRun`. @param {boolean} dryRun */
  async send(dryRun) {
    const { path, what } = this.options;
    try {
      const done = await put(path, { text: this.area.value, sha256: this.sha256,
        dry_run: dryRun });
      if (dryRun) {
        return replace(this.report, h("p", { class: "good" }, "The definition is valid."));
      }
      this.use(done, true);
      replace(this.report, savedText(done));
      toast(`Saved ${what}`);
      return this.options.saved(done);
    } catch (cause) {
      if (cause.name === "AbortError") return null;
      return this.showProblem(cause);
    }
  }

  /** @param {any} cause */
  showProblem(cause) {
    const { line, setting } = cause.details || {};
    replace(this.report, h("div", { class: "definition-problem", role: "alert" },
      h("p", null, h("strong", null, "Not saved. "), cause.message),
      setting && h("p", { class: "small" }, "Setting: ", h("code", null, setting))));
    if (line) this.select(line);
  }

  /** Select a line of the text. @param {number} line */
  select(line) {
    const lines = this.area.value.split("\n");
    const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    this.area.focus();
    this.area.setSelectionRange(start, start + (lines[line - 1] || "").length);
    const height = this.area.scrollHeight / Math.max(1, lines.length);
    this.area.scrollTop = Math.max(0, (line - 4) * height);
  }
}

/** What a save changed. @param {any} done */
function savedText({ reload }) {
  if (!reload) return h("p", { class: "good" }, "Saved. New runs use it.");
  return [
    h("p", { class: "good" }, "Saved. New runs use it; active runs keep the old definition."),
    reload.needs_restart.length > 0 && h("p", { class: "warn" },
      `Restart the service to apply changes to: ${reload.needs_restart.join(", ")}.`)];
}

/**
 * A form that asks for the name of something new.
 * @param {string} what @param {(name: string) => void} create
 */
export function nameForm(what, create) {
  const name = h("input", { required: true, maxlength: "64", autocomplete: "off",
    pattern: "[A-Za-z0-9][A-Za-z0-9_\\-]*" });
  const form = h("form", { class: "row name-form" },
    h("label", { class: "field" }, h("span", null, `Name of the new ${what}`), name,
      h("small", null, "Letters, digits, - and _")),
    h("button", { class: "primary" }, "Continue"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    create(name.value.trim());
  });
  return { form, name };
}
