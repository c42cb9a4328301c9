// @ts-check
// Evaluations: what runs now, the form that starts one, and the results.

import { get, post, postEmpty } from "../../api.js";
import { h, replace } from "../../dom.js";
import { count, money, some } from "../../format.js";
import { may } from "../../live.js";
import { busy, button, confirmed, field, fold, select, table, toast, when }
  from "../../components.js";
import { refreshing } from "../../refresh.js";
import { coverageOf, evaluationBadge, genomeName, rateText, versionName } from "./facts.js";

const MAX_SHOWN = 5; // evaluations that have ended

/** @param {string} agent */
const pathOf = (agent) => `/v1/agents/${encodeURIComponent(agent)}/evaluations`;

/**
 * Show the evaluations that run or ran last; returns what shows them again at once.
 * @param {HTMLElement} place @param {string} agent @param {AbortSignal} signal
 * @param {() => Promise<void>} ended called when one has ended
 */
export async function showEvaluations(place, agent, signal, ended) {
  let isRunning = false;
  const work = async () => (await get(pathOf(agent), null, { signal })).items;
  /** @param {Api.BackgroundEvaluation[]} items */
  const shown = (items) => {
    const runs = items.some(({ state }) => state === "running");
    if (isRunning && !runs) ended().catch(() => {}); // the next refresh shows it
    isRunning = runs;
    const [first] = items;
    if (!first || (first.state === "completed" && !first.problems.length)) return null;
    return h("div", { class: "card evaluations" }, h("h3", null, "Evaluations"),
      items.slice(0, MAX_SHOWN).map((one) => evaluation(one, again)));
  };
  const again = async () => {
    const items = await work();
    if (!signal.aborted) replace(place, shown(items));
  };
  await refreshing(place, work, shown, signal);
  return again;
}

/** @param {Api.BackgroundEvaluation} one @param {() => Promise<void>} again */
function evaluation(one, again) {
  const progress = `${one.done} of ${some(one.runs, "run")} done, ${one.passed} passed`;
  return h("article", { class: "evaluation", "aria-label": `evaluation ${one.id}` },
    h("div", { class: "row" }, evaluationBadge(one.state), h("span", null, genomeName(one)),
      h("span", { class: "soft small" }, when(one.started_at), ` by ${one.by}`),
      one.state === "running" && may("evolution:write")
        && button("Cancel", () => cancel(one, again), { label: `Cancel evaluation ${one.id}` })),
    h("div", { class: "row" }, one.state === "running" && h("progress", { max: String(one.runs),
      value: one.done, "aria-label": "progress" }), h("span", { class: "small" }, progress)),
    one.error && h("p", null, one.error),
    one.problems.length > 0 && fold("Why runs failed", () => h("ul", null,
      one.problems.map(({ case: name, problem }) => h("li", null, h("strong", null, name),
        `: ${problem}`)))));
}

/** @param {Api.BackgroundEvaluation} one @param {() => Promise<void>} again */
async function cancel(one, again) {
  const sure = await confirmed("Cancel this evaluation?",
    "Its runs end, and no result is stored.", { action: "Cancel the evaluation" });
  if (sure === null) return;
  await postEmpty(`${pathOf(one.agent)}/${encodeURIComponent(one.id)}/cancel`);
  await again();
}

/** The form that starts an evaluation. */
export class EvaluationForm {
  /** @param {string} agent @param {AbortSignal} signal @param {() => Promise<void>} started */
  constructor(agent, signal, started) {
    this.agent = agent;
    this.genome = select([["", "the current genome"]]);
    this.split = select([["", "train and validation"], "train", "validation"]);
    this.repeat = h("input", { type: "number", min: "1", max: "1000", value: "1", required: true });
    this.cases = h("div", { class: "case-choice" });
    /** @type {HTMLInputElement[]} */
    this.boxes = [];
    const go = h("button", { class: "primary" }, "Start the evaluation");
    this.element = h("section", null, may("evolution:write") && h("form", { class: "card flow-form",
      on: { submit: (event) => {
        event.preventDefault();
        busy(go, async () => {
          await post(pathOf(agent), this.request(), { signal });
          toast("The evaluation has started");
          await started();
        });
      } } }, h("h3", null, "Evaluate"),
    h("div", { class: "settings-form" }, field("Genome", this.genome),
      field("Split", this.split), field("Runs of each case", this.repeat)),
    this.cases, h("div", { class: "row" }, go, h("span", { class: "soft small" },
      "The runs use the model and the budget of the agent."))));
  }

  /** What the service is asked for. */
  request() {
    const [kind, number] = this.genome.value.split(" ");
    const chosen = this.boxes.filter(({ checked }) => checked).map(({ value }) => value);
    return { cases: chosen, repeat: Number(this.repeat.value),
      ...(this.split.value && { splits: [this.split.value] }),
      ...(kind && { [kind]: Number(number) }) };
  }

  /** Offer the versions and open candidates. @param {import("./agent.js").Evolution} found */
  offer({ entries, candidates }) {
    const chosen = this.genome.value;
    const versions = entries.flatMap(({ version }) => (version ? [version] : [])).reverse();
    const open = candidates.filter(({ state }) => state === "open");
    const options = [["", "the current genome"],
      ...versions.map((number) => [`version ${number}`, versionName(number)]),
      ["version 0", versionName(0)],
      ...open.map(({ number }) => [`candidate ${number}`, `candidate ${number}`])];
    replace(this.genome, options.map(([value, text]) => h("option", { value,
      selected: value === chosen }, text)));
  }

  /** Offer cases; none chosen: all. @param {Api.CaseView[]} cases */
  useCases(cases) {
    const offered = cases.filter(({ split }) => split !== "sealed");
    this.boxes = offered.map(({ name }) => h("input", { type: "checkbox", value: name }));
    replace(this.cases, offered.length > 0 && fold("Choose cases (otherwise all)",
      () => h("fieldset", null, h("legend", null, "Cases"), offered.map(({ name, split }, index) =>
        h("label", { class: "check" }, this.boxes[index], ` ${name} (${split})`)))));
  }
}

/** @param {Api.EvaluationResult[]} results the oldest first */
export const resultTable = (results) => table("results of evaluations", COLUMNS,
  results.slice(-100).reverse());

/** @param {[string, Api.Rate][]} cases none if the lineage has only the total */
const casesOf = (cases) => cases.length === 0 ? "–" : fold(some(cases.length, "case"),
  () => h("ul", null, cases.map(([name, rate]) => h("li", null,
    `${name}: ${rate.passed} of ${rate.attempts}`))));

/** @type {Column<Api.EvaluationResult>[]} */
const COLUMNS = [
  { title: "When", main: true, cell: (one) => [when(one.at), ` by ${one.by}`] },
  { title: "Genome", cell: (one) => genomeName(one) },
  { title: "Passed", number: true, cell: (one) =>
    `${count(one.total.passed)} of ${count(one.total.attempts)}` },
  { title: "Rate (95 % interval)", cell: (one) => rateText(one.total) },
  { title: "Coverage", number: true, cell: (one) => coverageOf(one) },
  { title: "Cost", number: true, cell: (one) => money(one.cost) },
  { title: "Cases", cell: ({ cases }) => casesOf(Object.entries(cases)) },
];
