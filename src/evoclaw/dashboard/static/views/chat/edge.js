// @ts-check
// The chooser of the edge that a session works on.

import { h, oneLine, replace } from "../../dom.js";
import { fleet, on } from "../../live.js";
import { select, toast } from "../../components.js";

/** @type {[string, string][]} */
const SELECTORS = [["any", "any edge with the tool"], ["*", "the edges the model names"]];

/**
 * The choices: the default edge, every other edge, and the selectors.
 * @param {string} chosen @returns {[string, string][]}
 */
function choices(chosen) {
  const edges = [...fleet.values()].sort((a, b) => (a.agent_id < b.agent_id ? -1 : 1));
  /** @param {Api.EdgeView} edge */
  const named = (edge) => oneLine(edge.agent_id, 40) + (edge.online ? "" : " (offline)");
  const usual = edges.find((edge) => edge.default);
  /** @type {[string, string][]} */
  const others = edges.filter((edge) => !edge.default).map((edge) => [edge.agent_id, named(edge)]);
  const known = new Set(["", ...others.map(([id]) => id), ...SELECTORS.map(([id]) => id)]);
  /** @type {[string, string][]} */
  const other = known.has(chosen) ? [] : [[chosen, oneLine(chosen, 40)]];
  return [["", usual ? named(usual) : "one edge, chosen at the first call"], ...others,
    ...SELECTORS.filter(([id]) => usual || id !== "any"),
    ...other];
}

/** Shown while there are edges; `change(id)` may reject, then the choice goes back. */
export class EdgeChooser {
  /** @param {string} chosen @param {(id: string) => unknown} change @param {AbortSignal} signal */
  constructor(chosen, change, signal) {
    this.chosen = chosen;
    this.change = change;
    this.drawn = "";
    this.element = h("label", { class: "row small edge", hidden: true });
    on("fleet", () => this.draw(), signal);
    this.draw();
  }

  draw() {
    const options = choices(this.chosen);
    const drawn = JSON.stringify([options, this.chosen]);
    this.element.hidden = fleet.size === 0;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const had = this.element.contains(document.activeElement);
    this.select = select(options, this.chosen, (id) => this.choose(id));
    this.select.setAttribute("aria-label", "Works on");
    replace(this.element, h("span", { class: "words", "aria-hidden": "true" }, "Works on"),
      this.select);
    if (had) this.select.focus();
  }

  /** @param {string} id */
  async choose(id) {
    const before = this.chosen;
    this.chosen = id;
    try {
      await this.change(id);
    } catch (cause) {
      toast(cause.message, "bad");
      this.chosen = before;
    }
    this.draw();
  }
}
