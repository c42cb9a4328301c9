// @ts-check
// Approvals: tool calls that wait for a person.

import { get } from "../../api.js";
import { announce, byId, h, inside, lookup, replace, ticking } from "../../dom.js";
import { some } from "../../format.js";
import { known, may, on } from "../../live.js";
import { empty, missingScope, toast } from "../../components.js";
import { ApprovalCard } from "./card.js";
import { EFFECT_ORDER, Group, send, whyNot } from "./group.js";
import { history, questions, standing } from "./answers.js";
import { workflowSteps } from "./steps.js";

export const title = "Approvals";

const SETTLE = 500; // milliseconds after a layout change in which clicks are rejected
const KEYS = [["j", "next"], ["k", "previous"], ["o", "approve once"], ["a", "always"],
  ["d", "deny"], ["x", "select"]];
const DECISIONS = lookup({ o: "once", a: "session", s: "session", d: "deny" });
const WRITING = "input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]";

/**
 * Show waiting calls and questions, approvals for a session, and past answers.
 * @param {HTMLElement} root @param {string[]} _args @param {AbortSignal} signal
 */
export async function mount(root, _args, signal) {
  if (!may("approvals:read")) {
    replace(root, missingScope("see approvals", "approvals:read"));
    return;
  }
  const queue = new Queue(signal);
  const sessions = h("div"), past = h("div"), asked = h("div", { class: "approval-list" });
  const askedSection = h("section", { hidden: true }, h("h2", null, "Questions"), asked);
  const steps = h("div"), stepSection = h("section", { hidden: true },
    h("h2", null, "Workflow steps"), steps);
  /** @type {Map<string, HTMLElement>} */
  const cards = new Map();
  const human = may("human");
  replace(root, human ? hint() : h("p", { class: "card approval-why", role: "note" },
    "You can see requests but not answer them: your token lacks the scope 'human', which only a "
    + "person's token has."),
  askedSection, queue.element,
  h("section", null, h("h2", null, "Approvals in force"), sessions), stepSection,
  h("section", null, h("h2", null, "Past answers"), past));
  const drawQuestions = () => {
    questions(asked, cards, human);
    askedSection.hidden = cards.size === 0;
  };
  on("questions", drawQuestions, signal);
  on("approvals", () => {
    queue.draw();
    standing(sessions, signal, human);
    workflowSteps(stepSection, steps, signal);
    history(past, signal);
  }, signal);
  ticking(() => queue.tick(), signal);
  document.addEventListener("keydown", (event) => queue.key(event), { signal });
  drawQuestions();
  standing(sessions, signal, human);
  workflowSteps(stepSection, steps, signal);
  history(past, signal);
  await queue.begin();
}

function hint() {
  return h("p", { class: "hint approval-keys" },
    KEYS.map(([key, text]) => h("span", null, h("kbd", null, key), ` ${text}`)));
}

/** The waiting calls, grouped; a card keeps its element while its call waits. */
class Queue {
  /** @param {AbortSignal} signal */
  constructor(signal) {
    this.signal = signal;
    this.human = may("human");
    /** @type {Map<string, string>} */
    this.effects = new Map();
    /** @type {Map<string, ApprovalCard>} */
    this.cards = new Map();
    /** @type {Map<string, Group>} */
    this.groups = new Map();
    this.current = "";
    this.since = -Infinity; // when another card was selected automatically
    this.quietUntil = 0;
    this.none = h("div");
    this.element = h("div", { class: "approval-queue" });
  }

  async begin() {
    try {
      const { items } = may("tools:read")
        ? await get("/v1/tools", null, { signal: this.signal }) : { items: [] };
      for (const tool of items) this.effects.set(tool.name, tool.effect);
    } catch (cause) {
      if (cause.name === "AbortError") return;
      toast(`The effects of tools could not be loaded: ${cause.message}`, "bad");
    }
    this.ready = true;
    this.draw();
  }

  /** Update the cards; those that stay are not touched. */
  draw() {
    if (!this.ready || this.signal.aborted) return;
    const waiting = known.approvals.filter((approval) => approval.standing === "waiting")
      .sort((a, b) => a.asked_at - b.asked_at);
    const before = this.places();
    const now = new Set(waiting.map((one) => one.id));
    for (const id of [...this.cards.keys()]) if (!now.has(id)) this.drop(id);
    const come = waiting.filter((one) => !this.cards.has(one.id));
    for (const item of come) this.add(item);
    for (const [key, group] of this.groups) {
      if (group.cards.size) group.count();
      else if (!group.report.firstChild) { group.element.remove(); this.groups.delete(key); }
      else group.count();
    }
    this.arrange();
    if (this.moved(before)) this.quietUntil = performance.now() + SETTLE;
    if (come.length && before.size) {
      announce(some(come.length, "more call waits", "more calls wait"));
    }
  }

  /** @param {Api.ApprovalView} item */
  add(item) {
    const effect = this.effects.get(item.tool) || "unknown", key = `${effect} ${item.code}`;
    if (!this.groups.has(key)) {
      this.groups.set(key, new Group(effect, item.code, this.human));
    }
    const group = /** @type {Group} */ (this.groups.get(key));
    /** @type {ApprovalCard} */
    const card = new ApprovalCard(item, { human: this.human, group,
      answer: (decision) => this.clicked(card, decision),
      select: (chosen) => group.choose(item.id, chosen) });
    card.element.addEventListener("focusin", () => this.mark(item.id));
    group.cards.set(item.id, card);
    group.list.append(card.element);
    this.cards.set(item.id, card);
  }

  /** @param {string} id */
  drop(id) {
    const card = this.cards.get(id);
    if (!card) return;
    const had = card.element.contains(document.activeElement);
    const next = had && this.neighbour(id, 1, true);
    card.group.cards.delete(id);
    card.group.chosen.delete(id);
    card.element.remove();
    this.cards.delete(id);
    if (this.current === id) this.current = "";
    if (next) this.go(next, true);
    else if (had) byId("main").focus();
  }

  /** Sort the groups, writes first; groups that are in place are not moved. */
  arrange() {
    /** @param {Group} group */
    const rank = (group) => EFFECT_ORDER.indexOf(group.effect);
    const sorted = [...this.groups.values()].sort((a, b) => rank(a) - rank(b));
    sorted.forEach((group, index) => {
      const current = this.element.children[index];
      if (current !== group.element) this.element.insertBefore(group.element, current || null);
    });
    if (this.cards.size) this.none.remove();
    else if (!this.none.isConnected) {
      replace(this.none, empty("Nothing is waiting for you."));
      this.element.append(this.none);
    }
  }

  places() {
    const all = new Map();
    for (const [id, card] of this.cards) all.set(id, card.element.getBoundingClientRect().top);
    return all;
  }

  /** @param {Map<string, number>} before */
  moved(before) {
    for (const [id, top] of before) {
      const card = this.cards.get(id);
      if (card && Math.abs(card.element.getBoundingClientRect().top - top) > 4) return true;
    }
    return false;
  }

  tick() {
    for (const card of this.cards.values()) card.tick();
  }

  /**
   * Reject a click right after the cards moved: it may have been meant for another card.
   * @param {ApprovalCard} card @param {string} decision
   */
  clicked(card, decision) {
    if (performance.now() < this.quietUntil) {
      toast("The queue has just changed. Check the call, then click again.", "bad");
      return null;
    }
    return this.answer(card, decision);
  }

  /** @param {ApprovalCard} card @param {string} decision */
  async answer(card, decision) {
    if (!card.open) return;
    const reason = decision === "deny" ? await whyNot(1, card.item.tool) : "";
    if (reason === null) return;
    await send(card, decision, reason);
    card.group.choose(card.item.id, false);
    announce(`${card.item.tool}: ${card.done.textContent}`);
  }

  ids() {
    return [...this.element.querySelectorAll(".approval")]
      .map((one) => one.getAttribute("data-id") || "");
  }

  /** @param {string} id @param {number} step @param {boolean} [besides] */
  neighbour(id, step, besides) {
    const ids = this.ids(), at = ids.indexOf(id);
    if (at < 0) return ids[step > 0 ? 0 : ids.length - 1];
    return ids[at + step] || (besides ? ids[at - step] : id);
  }

  /** @param {string} id */
  mark(id) {
    this.cards.get(this.current)?.element.classList.remove("current");
    this.cards.get(id)?.element.classList.add("current");
    this.current = id;
  }

  /** @param {string} id */
  go(id, unasked = false) {
    const card = this.cards.get(id);
    if (!card) return;
    card.element.focus({ preventScroll: true });
    card.element.scrollIntoView({ block: "nearest" });
    this.mark(id);
    this.since = unasked ? performance.now() : -Infinity;
  }

  /**
   * Handle shortcuts, except in inputs, in dialogs, when held down, or after “g”.
   * @param {KeyboardEvent} event
   */
  key(event) {
    const second = this.began;
    this.began = event.key === "g";
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || second) return;
    if (inside(event, WRITING) || document.querySelector("dialog[open]")) return;
    if (event.key === "j" || event.key === "k") {
      event.preventDefault();
      this.go(this.neighbour(this.current, event.key === "j" ? 1 : -1));
    } else this.act(event);
  }

  /** @param {KeyboardEvent} event */
  act(event) {
    const card = this.cards.get(this.current);
    const decision = DECISIONS[event.key];
    if (!this.human || !card || (!decision && event.key !== "x")) return;
    event.preventDefault();
    if (!decision) card.check?.click();
    else if (performance.now() - this.since > SETTLE / 2) {
      this.answer(card, decision).catch((cause) => toast(cause.message, "bad"));
    }
  }
}
