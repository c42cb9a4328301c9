// @ts-check
// The history of a session: the last hundred messages, and older ones on demand.

import { get } from "../../api.js";
import { h, oneLine } from "../../dom.js";
import { button } from "../../components.js";
import {
  Reply, ending, loopMessageKind, loopMessage, picturesOf, ratingOf, userMessage, showsCanvas,
  textOf,
} from "./messages.js";

/**
 * Messages that are drawn together; `asked` is the message that started their run.
 * @typedef {{run: Api.RatedRun|null, items: Api.NumberedMessage[], asked?: Api.NumberedMessage,
 *   isLast?: boolean, element?: HTMLElement, answer?: Reply|null}} Group
 */

const PAGE_SIZE = 100;
const MAX_GROUP_MESSAGES = 12; // messages that are drawn together
const MAX_SKIPPED_RUNS = 20; // runs without messages between two with messages

/** The messages of a session, except those of runs that have not ended. */
export class History {
  /** @param {string} sessionId @param {ChatActions} act @param {AbortSignal} signal */
  constructor(sessionId, act, signal) {
    this.sessionId = sessionId;
    this.act = act;
    this.signal = signal;
    this.first = 0;
    /** @type {Api.RatedRun[]} */
    this.runs = [];
    /** @type {Group|null} */
    this.cutOff = null; // the last group of a run whose start is on an older page
    this.hasCanvas = false;
    this.nextRuns = "";
    this.element = h("div", { class: "history" });
    this.older = button("Older messages", () => this.loadOlder(), { tone: "plain" });
    this.older.hidden = true;
  }

  /** Load the last page; returns the runs, the newest first. */
  async load() {
    const page = await this.askRuns("");
    // Counted after the runs were read: a run that had ended by then has all its messages.
    const { messages = 0 } = await get(`/v1/sessions/${this.sessionId}`, null,
      { signal: this.signal });
    this.first = messages;
    this.runs = [...page];
    if (messages) await this.loadOlder();
    return page;
  }

  /** @param {string} before */
  async askRuns(before) {
    const query = { session_id: this.sessionId, before, limit: PAGE_SIZE };
    const page = await get("/v1/runs", query, { signal: this.signal });
    this.nextRuns = page.next || "";
    return page.items;
  }

  /** Load the page before the first message. */
  async loadOlder() {
    const end = this.first, start = Math.max(0, end - PAGE_SIZE);
    const page = await get(`/v1/sessions/${this.sessionId}/messages`,
      { start, limit: end - start }, { signal: this.signal });
    const items = page.items.filter((one) => one.number < end);
    // Results belong to the reply with their calls: without it they come with the next page.
    while (start > 0 && items.length && items[0].message.role === "tool") items.shift();
    this.first = items.length ? items[0].number : start;
    if (this.runs.length < PAGE_SIZE / 2 && this.nextRuns) {
      this.runs.push(...await this.askRuns(this.nextRuns));
    }
    const groups = this.grouped(items);
    const made = groups.filter((group) => !group.run || group.run.state === "ended")
      .map((group) => this.section(group));
    this.older.hidden = this.first === 0;
    this.act.keepingPlace(() => this.element.prepend(...made));
    if (this.hasCanvas) this.act.canvas(false); // else there is no canvas to load
  }

  /**
   * Group the messages by run: a user message that equals the text of a run starts its messages.
   * A long run has several groups, so that each can be left undrawn.
   * @param {Api.NumberedMessage[]} items @returns {Group[]}
   */
  grouped(items) {
    /** @type {Group[]} */
    const groups = [];
    /** @type {Group|null} */
    let group = null;
    /** @type {Group[]} */
    let of = []; // the groups of the run whose start is searched
    for (const one of items.toReversed()) {
      const role = one.message.role, why = role === "user" ? loopMessageKind(one.message) : role;
      // The recalled notes of a run are stored just before its message.
      if (group?.asked && why !== "memory") group = null;
      const full = group && group.items.length >= MAX_GROUP_MESSAGES;
      if (!group || (full && group.items[0].message.role !== "tool")) {
        group = { run: null, items: [] };
        groups.unshift(group);
        of.unshift(group);
      }
      group.items.unshift(one);
      const run = one.message.role === "user" && !group.asked
        && this.matched(textOf(one.message));
      if (!run) continue;
      group.asked = one;
      for (const each of of) each.run = run;
      if (this.cutOff) this.finish(this.cutOff, run, "");
      else of[of.length - 1].isLast = true;
      this.cutOff = null;
      of = [];
    }
    if (of.length && !this.cutOff) this.cutOff = of[of.length - 1];
    return groups;
  }

  /**
   * Show the ending of a run below its last group, which may have been drawn with a later page.
   * @param {Group} group @param {Api.RatedRun} run @param {string} lastText
   */
  finish(group, run, lastText) {
    const end = ending(run, group.answer || null, lastText, ratingOf(run), this.act);
    if (end) group.element?.append(end);
  }

  /** @param {string} text */
  matched(text) {
    const index = this.runs.slice(0, MAX_SKIPPED_RUNS).findIndex((run) => run.asked === text);
    if (index < 0) return null;
    return this.runs.splice(0, index + 1)[index];
  }

  /** @param {Group} group */
  section(group) {
    const { run, items, asked } = group;
    const made = h("section", { class: "run past",
      "aria-label": oneLine(run?.asked || "earlier", 60) });
    /** @type {{reply: Reply|null, lastText: string}} */
    const shown = { reply: null, lastText: "" };
    for (const one of items) made.append(...this.shownOne(one, run, one === asked, shown));
    made.dataset.number = String((asked || items[0]).number);
    group.element = made;
    group.answer = shown.reply;
    if (group.isLast && run) this.finish(group, run, shown.lastText);
    return made;
  }

  /**
   * @param {Api.NumberedMessage} options @param {Api.RunView|null} run @param {boolean} isAsked
   * @param {{reply: Reply|null, lastText: string}} shown @returns {Element[]}
   */
  shownOne({ number, message }, run, isAsked, shown) {
    if (message.role === "system") return [loopMessage(message.text, "start")];
    if (message.role === "user") return [this.shownUser(number, message, isAsked)];
    if (message.role === "tool") {
      const card = shown.reply?.cards.get(message.call_id);
      card?.finished(message);
      if (showsCanvas(message)) this.hasCanvas = true;
      return [];
    }
    shown.reply = new Reply(run?.run_id || "", this.act);
    shown.reply.whole(message, number);
    shown.lastText = message.text || shown.lastText;
    return [shown.reply.element];
  }

  /** @param {number} number @param {Api.UserMessage} message @param {boolean} isAsked */
  shownUser(number, message, isAsked) {
    const text = textOf(message), why = isAsked ? "" : loopMessageKind(message);
    if (why) return loopMessage(text, why);
    const tools = [button("Ask differently", () => this.act.branch(number, "user", text), {
      tone: "plain tiny", title: "Start a new session from here, with a different message" })];
    return userMessage(text, { tools, pictures: picturesOf(message) });
  }

  /**
   * Remove the messages from this number on: a live run shows them.
   * @param {number|null} number
   */
  cut(number) {
    if (number === null) return;
    for (const section of [...this.element.children]) {
      if (Number(section.getAttribute("data-number")) >= number) section.remove();
    }
    if (this.first > number) this.first = number;
    this.older.hidden = this.first === 0;
  }
}
