// A group of waiting calls with the same effect and code, answered one by one or together.

import { post } from "../../api.js";
import { h, replace, setText } from "../../dom.js";
import { some } from "../../format.js";
import { badge, button, confirmed } from "../../components.js";

const DONE = { once: "approved once", session: "approved for the session",
  step: "approved for this step from now on", deny: "denied" };
const EFFECTS = { write: ["warn", "writes"], read: ["quiet", "read-only"],
  unknown: ["bad", "effect unknown"] };
/** The order of the effects: writes first. */
export const EFFECT_ORDER = ["write", "unknown", "read"];

/** Send one answer; the card says so. */
export async function send(card, decision, reason) {
  await post(`/v1/approvals/${encodeURIComponent(card.item.id)}/answer`, { decision, reason });
  card.answered(`${DONE[decision]}; the run continues`);
}

/** Ask for the reason of a denial; null if cancelled. */
export function whyNot(number, tool) {
  const what = number === 1 ? `this call of ${tool}` : some(number, "call");
  return confirmed(`Deny ${what}?`, "The model is notified, and continues without the call.",
    { action: "Deny", ask: "Reason, shown to the model (optional)" });
}

/** A section of the queue. */
export class Group {
  constructor(effect, code, human) {
    const [tone, text] = EFFECTS[effect] || EFFECTS.unknown;
    this.cards = new Map();
    this.chosen = new Set();
    this.number = h("span");
    this.list = h("div", { class: "approval-list" });
    this.report = h("div", { class: "approval-report", role: "status" });
    this.element = h("section", { class: "approval-group" },
      h("header", { class: "row between" },
        h("h2", { class: "row" }, badge(tone, text), h("code", null, code || "asked"),
          this.number), human && this.together()),
      this.report, this.list);
  }

  /** The buttons for several at once. */
  together() {
    this.all = h("input", { type: "checkbox", on: { change: () => this.chooseAll() } });
    this.once = button("Approve", () => this.answerChosen("once"));
    this.deny = button("Deny…", () => this.answerChosen("deny"), { tone: "danger" });
    return h("div", { class: "row approval-together" },
      h("label", { class: "check small" }, this.all, "select all"), this.once, this.deny);
  }

  chooseAll() {
    const chosen = this.all.checked; // counting sets it again
    for (const [id, card] of this.cards) {
      if (!card.open) continue;
      card.check.checked = chosen;
      this.choose(id, chosen);
    }
  }

  /** Select or deselect a card. */
  choose(id, chosen) {
    if (chosen) this.chosen.add(id);
    else this.chosen.delete(id);
    this.count();
  }

  /** Update the numbers of waiting and selected calls. */
  count() {
    setText(this.number, some(this.cards.size, "call waits", "calls wait"));
    if (!this.all) return;
    const open = [...this.cards.values()].filter((card) => card.open).length;
    const number = this.chosen.size;
    this.all.checked = number > 0 && number === open;
    this.all.indeterminate = number > 0 && number < open;
    this.all.disabled = open === 0;
    this.once.disabled = this.deny.disabled = number === 0;
    setText(this.once, number ? `Approve ${number} once` : "Approve once");
    setText(this.deny, number ? `Deny ${number}…` : "Deny…");
  }

  async answerChosen(decision) {
    const cards = [...this.chosen].map((id) => this.cards.get(id)).filter(Boolean);
    const reason = decision === "deny" ? await whyNot(cards.length, cards[0].item.tool)
      : await this.sure(cards);
    if (reason === null) return;
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

  async sure(cards) {
    if (cards.length === 1) return "";
    const tools = new Map();
    for (const { item } of cards) tools.set(item.tool, (tools.get(item.tool) || 0) + 1);
    const text = [...tools].map(([tool, number]) => `${number} × ${tool}`).join(", ");
    return confirmed(`Approve ${cards.length} calls once?`,
      `Each call runs once, as shown: ${text}.`,
      { action: `Approve ${cards.length} once`, tone: "primary" });
  }

  showReport(decision, succeeded, failures) {
    replace(this.report, h("p", null, `${succeeded} ${DONE[decision]}`,
      failures.length > 0 && `; ${failures.length} failed:`),
    failures.length > 0 && h("ul", null, failures.map(([item, why]) =>
      h("li", null, h("code", null, item.tool), ` ${item.id}: ${why}`))));
  }
}
