// @ts-check
// The approvals and questions that a run waits for, answered in the conversation.

import { post } from "../../api.js";
import { announce, h, setText } from "../../dom.js";
import { duration } from "../../format.js";
import { known, may, runs } from "../../live.js";
import { badge, busy as press, button, field } from "../../components.js";
import { scopeFacts } from "../approvals/card.js";
import { headline, subject } from "../approvals/subject.js";
import { aboutCall } from "./call.js";

/**
 * @typedef {{element: HTMLElement, announcement: string, left?: HTMLElement|null,
 *   expires?: number}} PendingCard
 */

/**
 * Whether a run is the given one, or one of its sub-runs.
 * @param {string} runId @param {string} above
 */
function belongs(runId, above) {
  for (let id = runId, steps = 0; id && steps < 10; steps += 1) {
    if (id === above) return true;
    id = runs.get(id)?.parent_run || "";
  }
  return false;
}

/** The waiting approvals and questions of one run. */
export class PendingRequests {
  /**
   * @param {HTMLElement} place @param {string} runId
   * @param {{onNew: () => void, onNone: () => void}} options
   */
  constructor(place, runId, { onNew, onNone }) {
    this.place = place;
    this.runId = runId;
    this.onNew = onNew;
    this.onNone = onNone;
    /** @type {Map<string, PendingCard>} */
    this.cards = new Map();
  }

  /** Update the cards; existing cards stay, with the text typed into them. */
  update() {
    /** @type {Map<string, () => PendingCard>} */
    const wanted = new Map();
    for (const one of known.approvals) {
      if (one.standing === "waiting" && belongs(one.run_id, this.runId)) {
        wanted.set(one.id, () => this.approval(one));
      }
    }
    for (const one of known.questions) {
      if (belongs(one.run_id, this.runId)) wanted.set(one.id, () => this.question(one));
    }
    for (const [id, card] of this.cards) if (!wanted.has(id)) this.remove(id, card);
    for (const [id, make] of wanted) if (!this.cards.has(id)) this.add(id, make());
  }

  /** The number of cards. */
  get size() { return this.cards.size; }

  /** @param {string} id @param {PendingCard} card */
  add(id, card) {
    this.cards.set(id, card);
    this.place.append(card.element);
    announce(card.announcement);
    this.onNew();
  }

  /** @param {string} id @param {PendingCard} card */
  remove(id, card) {
    const had = card.element.contains(document.activeElement);
    this.cards.delete(id);
    card.element.remove();
    if (!had) return;
    /** @type {HTMLElement|null} */
    const next = this.place.querySelector("button, input, textarea");
    if (next) next.focus();
    else this.onNone();
  }

  /**
   * Called once a second: update the time that is left.
   * @param {number} now
   */
  tick(now) {
    for (const { left, expires = 0 } of this.cards.values()) {
      if (left) setText(left, expires > now ? `expires in ${duration(expires - now)}` : "expired");
    }
  }

  /** @param {Api.ApprovalView} one @returns {PendingCard} */
  approval(one) {
    /** @param {string} decision */
    const answer = async (decision, reason = "") => {
      await post(`/v1/approvals/${one.id}/answer`, { decision, reason });
      announce({ once: "approved once", session: "approved for the session",
        deny: "denied" }[decision]);
      const card = this.cards.get(one.id);
      if (card) this.remove(one.id, card);
    };
    const left = h("span", { class: "soft small" });
    const choices = h("div", { class: "row" }, this.choices(one, answer));
    const heading = h("h3", { id: `wait-${one.id}` }, headline(one));
    const element = h("article", { class: "wait card", "aria-labelledby": `wait-${one.id}` },
      h("div", { class: "row between" }, h("div", { class: "row" },
        badge("warn", "approval"), heading), left),
      subject(one),
      h("dl", { class: "facts small" }, scopeFacts(one),
        one.run_id !== this.runId && [h("dt", null, "requested by"),
          h("dd", null, `${one.agent}, in a sub-run`)]),
      choices);
    const made = { element, left, expires: one.expires_at,
      announcement: `Approval needed: ${one.tool}${one.machine ? ` on ${one.machine}` : ""} `
        + `${aboutCall(one.arguments)}. ${one.reason}` };
    this.tickOne(made);
    return made;
  }

  /** @param {PendingCard} options */
  tickOne({ left = null, expires = 0 }) {
    setText(left, `expires in ${duration(Math.max(0, expires - Date.now() / 1000))}`);
  }

  /**
   * @param {Api.ApprovalView} one
   * @param {(decision: string, reason?: string) => Promise<void>} answer
   */
  choices(one, answer) {
    if (!may("human")) {
      return h("p", { class: "soft" },
        "Your token cannot answer this: it lacks the scope 'human'.");
    }
    const why = h("input", { type: "text", maxlength: "2000", autocomplete: "off" });
    const denied = h("button", { class: "danger" }, "Deny");
    const deny = h("form", { class: "row deny", hidden: true },
      h("div", { class: "grow" }, field("Reason, shown to the model (optional)", why)),
      denied);
    deny.addEventListener("submit", (event) => {
      event.preventDefault();
      press(denied, () => answer("deny", why.value));
    });
    const open = button("Deny…", () => {
      deny.hidden = !deny.hidden;
      open.setAttribute("aria-expanded", String(!deny.hidden));
      if (!deny.hidden) why.focus();
    }, { tone: "danger", label: `Deny ${one.tool}…` });
    open.setAttribute("aria-expanded", "false");
    const name = `${one.tool}${one.machine ? ` on ${one.machine}` : ""}`;
    return [button("Approve once", () => answer("once"),
      { tone: "primary", label: `Approve once: ${name}` }),
    button("Always", () => answer("session"),
      { title: `Covers ${one.covers}`, label: `Always: ${name}` }), open, deny];
  }

  /** @param {Api.QuestionView} one @returns {PendingCard} */
  question(one) {
    const name = `question-${one.id}`, options = one.options || [];
    const inputs = options.map((text) => h("input", { value: text, name,
      type: one.multiple ? "checkbox" : "radio" }));
    const words = h("textarea", { rows: "2", maxlength: "4000" });
    const hasWords = !options.length || one.own_words !== false;
    const problem = h("p", { class: "bad-text small", role: "alert", hidden: true });
    const send = async () => {
      const chosen = options.filter((_, index) => inputs[index].checked);
      const text = hasWords ? words.value.trim() : "";
      problem.hidden = chosen.length > 0 || text !== "";
      if (!problem.hidden) {
        return setText(problem, "Choose an option, or write an answer.");
      }
      await post(`/v1/runs/${one.run_id}/answer`, { question_id: one.id, chosen, text });
      announce("answered");
      const card = this.cards.get(one.id);
      if (card) this.remove(one.id, card);
    };
    const go = h("button", { class: "primary" }, "Answer");
    const element = h("form", { class: "wait card" },
      h("fieldset", null,
        h("legend", null, badge("warn", "question"), " ", h("strong", null, one.text)),
        options.map((text, index) => h("label", { class: "check" }, inputs[index], ` ${text}`)),
        hasWords && field(options.length ? "Or in your own words" : "Your answer", words)),
      problem, may("human")
        ? h("div", { class: "row" }, go)
        : h("p", { class: "soft" }, "Your token cannot answer this: it lacks the scope 'human'."));
    element.addEventListener("submit", (event) => {
      event.preventDefault();
      press(go, send);
    });
    return { element, announcement: `A question: ${one.text}` };
  }
}
