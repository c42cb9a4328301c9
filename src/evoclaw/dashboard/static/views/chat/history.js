// What was said before: the last hundred messages, and older ones on demand.

import { get } from "../../api.js";
import { h, oneLine } from "../../dom.js";
import { button } from "../../parts.js";
import {
  Reply, ending, loopSaid, saidByLoop, saidByPerson, showsCanvas, textOf,
} from "./turns.js";

const AT_ONCE = 100;
const LONGEST = 12; // messages that are drawn together
const LOOKED_THROUGH = 20; // runs that may have said nothing, between two that did

/** The messages of a session that no run which goes on will tell of. */
export class History {
  constructor(sessionId, act, signal) {
    Object.assign(this, { sessionId, act, signal, first: 0, runs: [], nextRuns: "" });
    this.element = h("div", { class: "history" });
    this.older = button("Older messages", () => this.loadOlder(), { tone: "plain" });
    this.older.hidden = true;
  }

  /** Load the end of it. `count`: of all messages; gives the runs, the newest first. */
  async load(count) {
    const page = await this.askRuns("");
    this.first = count;
    const found = [...page];
    this.runs = found;
    if (count) await this.loadOlder();
    return page;
  }

  async askRuns(before) {
    const query = { session_id: this.sessionId, before, limit: AT_ONCE };
    const page = await get("/v1/runs", query, { signal: this.signal });
    this.nextRuns = page.next || "";
    return page.items;
  }

  /** Put the messages before the first one in front. */
  async loadOlder() {
    const end = this.first, start = Math.max(0, end - AT_ONCE);
    const path = `/v1/sessions/${this.sessionId}/messages`;
    const page = await get(path, { start, limit: end - start }, { signal: this.signal });
    const items = page.items.filter((one) => one.number < end);
    // Results stand with the reply that asked for them: without it they come with the next page.
    while (start > 0 && items.length && items[0].message.role === "tool") items.shift();
    this.first = items.length ? items[0].number : start;
    if (this.runs.length < AT_ONCE / 2 && this.nextRuns) {
      this.runs.push(...await this.askRuns(this.nextRuns));
    }
    const groups = this.grouped(items);
    const made = groups.filter((group) => !group.run || group.run.state === "ended")
      .map((group) => this.section(group));
    this.older.hidden = this.first === 0;
    this.act.keepingPlace(() => this.element.prepend(...made));
    if (this.hasCanvas) this.act.canvas(false); // else there is none, and nobody need be asked
  }

  /**
   * The messages in groups, each with the run that it is of: what a person said that is what a run
   * was asked begins its messages. A long run has several groups, so that each can be left undrawn.
   */
  grouped(items) {
    const groups = [];
    let group = null, of = []; // `of`: the groups of the run whose beginning is looked for
    for (const one of items.toReversed()) {
      const role = one.message.role, why = role === "user" ? loopSaid(one.message) : role;
      // What was remembered for a run stands just before what it was asked.
      if (group?.asked && why !== "memory") group = null;
      if (!group || (group.items.length >= LONGEST && group.items[0].message.role !== "tool")) {
        group = { run: null, items: [] };
        groups.unshift(group);
        of.unshift(group);
      }
      group.items.unshift(one);
      const run = role === "user" && !group.asked && this.matched(textOf(one.message));
      if (!run) continue;
      group.asked = one;
      for (const each of of) each.run = run;
      if (this.cutOff) this.finish(this.cutOff, run);
      else of.at(-1).isLast = true;
      this.cutOff = null;
      of = [];
    }
    if (of.length && !this.cutOff) this.cutOff = of.at(-1);
    return groups;
  }

  /** Say how a run ended that began on another page than it did. */
  finish(group, run) {
    const end = ending(run, "", this.act);
    if (end) group.element?.append(end);
  }

  matched(text) {
    const index = this.runs.slice(0, LOOKED_THROUGH).findIndex((run) => run.asked === text);
    if (index < 0) return null;
    return this.runs.splice(0, index + 1)[index];
  }

  section(group) {
    const { run, items, asked } = group;
    const made = h("section", { class: "run past",
      "aria-label": oneLine(run?.asked || "earlier", 60) });
    const shown = { reply: null, told: "" };
    for (const one of items) made.append(...this.shownOne(one, run, one === asked, shown));
    const end = group.isLast && ending(run, shown.told, this.act);
    if (end) made.append(end);
    made.dataset.number = (asked || items[0]).number;
    group.element = made;
    return made;
  }

  shownOne({ number, message }, run, isAsked, shown) {
    if (message.role === "system") return [saidByLoop(message.text, "start")];
    if (message.role === "user") return [this.shownUser(number, message, isAsked)];
    if (message.role === "tool") {
      const card = shown.reply?.cards.get(message.call_id);
      card?.finished(message);
      if (showsCanvas(message)) this.hasCanvas = true;
      return [];
    }
    shown.reply = new Reply(run?.run_id || "", this.act);
    shown.reply.whole(message, number);
    shown.told = message.text || shown.told;
    return [shown.reply.element];
  }

  shownUser(number, message, isAsked) {
    const text = textOf(message), why = isAsked ? "" : loopSaid(message);
    if (why) return saidByLoop(text, why);
    const tools = [button("Ask differently", () => this.act.branch(number, "user", text), {
      tone: "plain tiny", title: "Go on from before this in a new session, with other words" })];
    return saidByPerson(text, { tools });
  }

  /** A run tells of everything from this number on: what stands here of it goes. */
  cut(number) {
    for (const section of [...this.element.children]) {
      if (Number(section.dataset.number) >= number) section.remove();
    }
    if (this.first > number) this.first = number;
    this.older.hidden = this.first === 0;
  }
}
