// @ts-check
// The header of a run: message, status, metrics, budget, parent and sub-runs.

import { get } from "../../api.js";
import { h, oneLine, replace, setText } from "../../dom.js";
import { count, duration, money } from "../../format.js";
import { badge, figure, fold, load, runBadge, textBlock, when } from "../../components.js";

const FIGURES = {
  turns: ["turns", "Replies from the model"],
  calls: ["calls", "Calls that ran"],
  tokens: ["tokens in / out", "As counted by the provider"],
  cost: ["cost", "“unknown”: the price of the model is not known"],
  wall: ["wall time", "From the first record to the last"],
  saved: ["saved in parallel", "The sum of the call durations, minus the time in which calls ran"],
};

/** The head. */
export class Head {
  /** @param {Api.RunView} view @param {AbortSignal} signal */
  constructor(view, signal) {
    this.view = view;
    this.signal = signal;
    this.shown = this.reasonShown = this.relativesShown = "";
    this.state = h("span", { class: "run-state", role: "status" });
    this.actions = h("div", { class: "row run-actions" });
    this.reason = h("p", { class: "run-reason" });
    this.model = h("span");
    this.relatives = h("div", { class: "row small run-relatives" });
    this.figures = Object.fromEntries(Object.entries(FIGURES)
      .map(([name, [text, title]]) => [name, figure(text, "–", title)]));
    this.budget = h("div", { class: "budget" });
    const open = fold("Budget", () => { this.loadBudget(); return this.budget; });
    this.element = h("header", { class: "run-head" },
      h("div", { class: "row between run-top" },
        h("div", { class: "row" }, this.state, this.where()), this.actions),
      this.asked(), this.reason, this.relatives,
      h("div", { class: "run-figures" }, Object.values(this.figures), open));
    this.drawRelatives([]);
    this.findChildren();
  }

  where() {
    const { view } = this;
    return h("span", { class: "soft small" }, view.agent, " · ", this.model, " · ",
      when(view.began_at), " · ", h("a", { href: `#/chat/${encodeURIComponent(view.session_id)}` },
        "session"));
  }

  asked() {
    const text = this.view.asked || "(no message)";
    const line = h("p", { class: "run-asked" }, oneLine(text, 220));
    if (oneLine(text, 220) === text.trim()) return line;
    return h("details", { class: "run-asked" }, h("summary", null, oneLine(text, 160)),
      textBlock(text, "message"));
  }

  /**
   * Show the metrics of a run; `past`: at an earlier position of the replay.
   * @param {RunModel} run @param {number} now @param {boolean} past
   */
  update(run, now, past) {
    const { stop, reason } = run.finished || {};
    const state = run.finished ? (stop === "waiting" ? "waiting" : "ended") : "running";
    const queued = run.count === 0 && this.view.state === "queued";
    const key = `${queued} ${state} ${stop} ${past}`;
    if (key !== this.shown) {
      this.shown = key;
      replace(this.state, runBadge({ state: queued ? "queued" : state, stop }),
        past && badge("busy", "in the past"));
    }
    this.drawReason(reason || "", !past && stop === "waiting");
    setText(this.model, run.model || "…");
    const values = {
      turns: String(run.turns.length), calls: String(run.ran),
      tokens: `${count(run.tokensIn)} / ${count(run.tokensOut)}`, cost: money(run.price),
      wall: run.began === null ? "–" : duration(now - run.began),
      saved: run.saved(now) < 0.0005 ? "0 s" : duration(run.saved(now)),
    };
    for (const [name, value] of Object.entries(values)) {
      setText(this.figures[name].firstChild, value);
    }
  }

  /** @param {string} reason @param {boolean} waits */
  drawReason(reason, waits) {
    const key = `${reason} ${waits}`;
    if (key === this.reasonShown) return;
    this.reasonShown = key;
    this.reason.hidden = !reason && !waits;
    replace(this.reason, reason, waits && [" ", h("a", { href: "#/approvals" }, "Answer")]);
  }

  loadBudget() {
    const path = `/v1/budgets/runs/${encodeURIComponent(this.view.run_id)}`;
    load(this.budget, () => get(path, null, { signal: this.signal }), budgetTable, this.signal);
  }

  async findChildren() {
    const wanted = { parent_run: this.view.run_id, limit: 100 };
    try {
      this.drawRelatives((await get("/v1/runs", wanted, { signal: this.signal })).items);
    } catch (cause) {
      if (cause.name !== "AbortError") this.drawRelatives([], cause.message);
    }
  }

  /** @param {Api.RunView[]} children */
  drawRelatives(children, problem = "") {
    const { parent_run: parent } = this.view;
    // Rendered again only if it differs, so that a click does not miss.
    const states = children.map((run) => [run.run_id, run.state, run.stop]);
    const key = JSON.stringify([states, problem]);
    if (key === this.relativesShown) return;
    this.relativesShown = key;
    this.relatives.hidden = !parent && !children.length && !problem;
    replace(this.relatives, problem && `The sub-runs could not be loaded: ${problem}`,
      parent && h("span", null, "started by ", link(parent, `run ${parent.slice(0, 8)}`)),
      children.length > 0 && h("span", null, "started "),
      children.map((one) => h("span", { class: "row" },
        link(one.run_id, `${one.agent}: ${oneLine(one.asked || one.run_id, 50)}`),
        runBadge(one))));
  }
}

/** @param {string} id @param {string} text */
const link = (id, text) => h("a", { href: `#/runs/${encodeURIComponent(id)}` }, text);

/** @param {Api.AccountView} options */
function budgetTable({ kinds, closed }) {
  const rows = Object.entries(kinds || {});
  if (!rows.length) return h("p", { class: "soft" }, "No spending recorded.");
  return [h("ul", { class: "bars" }, rows.map(([kind, one]) => {
    const share = one.limit ? Math.min(1, (one.spent + one.reserved) / one.limit) : 0;
    const limit = one.limit === null ? "no limit" : `of ${count(one.limit)}`;
    return h("li", null, h("span", null, kind),
      h("span", { class: "bar-track", "aria-hidden": "true" }, h("span", {
        class: `bar ${share > 0.9 ? "bad" : ""}`, style: { width: `${share * 100}%` } })),
      h("span", { class: "bar-value" }, `${count(one.spent)} ${limit}`));
  })), closed && h("p", { class: "small soft" }, "The account is closed: the run has ended.")];
}
