// @ts-check
// A group of waiting calls with the same effect and code, answered one by one or together.

import { post } from "../../api.js";
import { h, lookup, replace, setText } from "../../dom.js";
import { some } from "../../format.js";
import { badge, button, confirmed } from "../../components.js";

/** @typedef {import("./card.js").ApprovalCard} ApprovalCard */

const DONE = lookup({ once: "approved once", session: "approved for the session",
  step: "approved for all runs of this step", deny: "denied" });
const UNKNOWN = ["bad", "effect unknown"];
const EFFECTS = lookup({ write: ["warn", "writes"], read: ["quiet", "read-only"] });
/** The order of the effects: writes first. */
export const EFFECT_ORDER = ["write", "unknown", "read"];

/**
 * Send one answer; the card says so.
 * @param {ApprovalCard} card @param {string} decision @param {string} reason
 */
export async function send(card, decision, reason) {
  await post(`/v1/approvals/${encodeURIComponent(card.item.id)}/answer`, { decision, reason });
  card.answered(`${DONE[decision]}; the run continues`);
}

/**
 * Ask for the reason of a denial; null if cancelled.
 * @param {number} number @param {string} tool
 */
export function whyNot(number, tool) {
  const what = number === 1 ? `this call of ${tool}` : some(number, "call");
  return confirmed(`Deny ${what}?`, "The model is told, and continues without this call.",
    { action: "Deny", ask: "Reason, shown to the model (optional)" });
}

/** A section of the queue. */
export class Group {
  /** @param {string} effect @param {string} code @param {boolean} human */
  constructor(effect, code, human) {
    const [tone, text] = EFFECTS[effect] || UNKNOWN;
    this.effect = effect;
    /** @type {Map<string, ApprovalCard>} */
    this.cards = new Map();
    /** @type {Set<string>} */
    this.chosen = new Set();
    this.all = h("input", { type: "checkbox", on: { change: () => this.chooseAll() } });
    this.once = button("Approve", () => this.answerChosen("once"));
    this.deny = button("Deny…", () => this.answerChosen("deny"), { tone: "danger" });
    this.number = h("span");
    this.list = h("div", { class: "approval-list" });
    this.report = h("div", { class: "approval-report", role: "status" });
    this.element = h("section", { class: "approval-group" },
      h("header", { class: "row between" },
        h("h2", { class: "row" }, badge(tone, text), h("code", null, code || "asked"),
          this.number), human && h("div", { class: "row approval-together" },
          h("label", { class: "check small" }, this.all, "Select all"), this.once, this.deny)),
      this.report, this.list);
  }

  chooseAll() {
    const chosen = this.all.checked; // counting sets it again
    for (const [id, card] of this.cards) {
      if (!card.open || !card.check) continue;
      card.check.checked = chosen;
      this.choose(id, chosen);
    }
  }

  /**
   * Select or deselect a card.
   * @param {string} id @param {boolean} chosen
   */
  choose(id, chosen) {
    if (chosen) this.chosen.add(id);
    else this.chosen.delete(id);
    this.count();
  }

  /** Update the numbers of waiting and selected calls. */
  count() {
    setText(this.number, some(this.cards.size, "call waits", "calls wait"));
    const open = [...this.cards.values()].filter((card) => card.open).length;
    const number = this.chosen.size;
    this.all.checked = number > 0 && number === open;
    this.all.indeterminate = number > 0 && number < open;
    this.all.disabled = open === 0;
    this.once.disabled = this.deny.disabled = number === 0;
    setText(this.once, number ? `Approve ${number} once` : "Approve once");
    setText(this.deny, number ? `Deny ${number}…` : "Deny…");
  }

  /** @param {string} decision */
  async answerChosen(decision) {
    const cards = [...this.chosen].flatMap((id) => this.cards.get(id) || []);
    const reason = decision === "deny" ? await whyNot(cards.length, cards[0].item.tool)
      : await this.sure(cards);
    if (reason === null) return;
    /** @type {[Api.ApprovalView, string][]} */
    const failures = [];
    for (const card of cards) {
      try {
        await send(card, decision, reason);
      } catch (cause) {
        failures.push([card.item, cause.message]);
      }
      this.chosen.delete(card.item.id);
    }
    this.showReport(decision, cards.length - failures.length, failures);
    this.count();
  }

  /** @param {ApprovalCard[]} cards */
  async sure(cards) {
    if (cards.length === 1) return "";
    const tools = new Map();
    for (const { item } of cards) tools.set(item.tool, (tools.get(item.tool) || 0) + 1);
    const text = [...tools].map(([tool, number]) => `${number} × ${tool}`).join(", ");
    return confirmed(`Approve ${cards.length} calls once?`,
      `Each call runs once, as shown: ${text}.`,
      { action: `Approve ${cards.length} once`, tone: "primary" });
  }

  /**
   * @param {string} decision @param {number} succeeded
   * @param {[Api.ApprovalView, string][]} failures
   */
  showReport(decision, succeeded, failures) {
    replace(this.report, h("p", null, `${succeeded} ${DONE[decision]}`,
      failures.length > 0 && `; ${failures.length} failed:`),
    failures.length > 0 && h("ul", null, failures.map(([item, why]) =>
      h("li", null, h("code", null, item.tool), ` ${item.id}: ${why}`))));
  }
}
