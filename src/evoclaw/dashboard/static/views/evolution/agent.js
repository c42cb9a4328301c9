// @ts-check
// The genome of one agent: its versions and candidates as a tree, scores, evaluations and cases.

import { get, post } from "../../api.js";
import { h, replace } from "../../dom.js";
import { may } from "../../live.js";
import { button, confirmed, empty, fold, jsonBlock, table, toast, when } from "../../components.js";
import { refreshing } from "../../refresh.js";
import { showCases } from "./cases.js";
import { EvaluationForm, resultTable, showEvaluations } from "./evaluations.js";
import { candidateBadge, evolutionLink, runLinks, versionName } from "./facts.js";
import { scorePlot } from "./scores.js";
import { lineageTree } from "./tree.js";

/**
 * @typedef {object} Evolution
 * @property {string} agent
 * @property {Api.LineageEntry[]} entries
 * @property {Api.CandidateView[]} candidates the newest first
 * @property {Api.EvaluationResult[]} results the oldest first
 */

/**
 * Show the genome of an agent.
 * @param {HTMLElement} root @param {string} agent @param {AbortSignal} signal
 */
export async function showAgentEvolution(root, agent, signal) {
  const back = h("p", { class: "back" }, h("a", { href: "#/evolution" }, "← All agents"));
  const about = h("div", { class: "evolution" }), running = h("section");
  const form = new EvaluationForm(agent, signal, () => now());
  const cases = h("section", { class: "card" });
  replace(root, back, h("h2", null, agent), running, about, form.element, cases);
  /** @param {Evolution} found */
  const shown = (found) => {
    form.offer(found);
    return page(found, reload);
  };
  const work = () => everything(agent, signal);
  /** Show a change that was made here at once. */
  const reload = async () => {
    const found = await work();
    if (!signal.aborted) replace(about, shown(found));
  };
  const now = await showEvaluations(running, agent, signal, reload);
  await Promise.all([refreshing(about, work, shown, signal),
    showCases(cases, agent, signal, (found) => form.useCases(found))]);
}

/** @param {string} agent @param {AbortSignal} signal @returns {Promise<Evolution>} */
async function everything(agent, signal) {
  const name = encodeURIComponent(agent);
  const [history, candidates, evaluations] = await Promise.all([
    get(`/v1/genomes/${name}/history`, null, { signal }),
    get(`/v1/agents/${name}/candidates`, null, { signal }),
    get(`/v1/agents/${name}/evaluations`, null, { signal })]);
  return { agent, entries: history.items, candidates: candidates.items,
    results: evaluations.results };
}

/** @param {Evolution} found @param {() => Promise<void>} reload */
function page(found, reload) {
  if (!found.entries.length) return beginning();
  const versions = found.entries.filter((entry) => entry.version);
  const waiting = found.candidates.filter(({ stage }) => stage === "approval");
  const current = versions.at(-1);
  return [
    waiting.length > 0 && h("section", { class: "card waiting-candidates" },
      h("h3", null, "Waiting for your decision"), h("ul", null, waiting.map((one) => h("li", null,
        h("a", { href: evolutionLink(found.agent, one.number) }, `Candidate ${one.number}`),
        one.reason ? `: ${one.reason}` : "")))),
    h("section", { class: "card" }, h("div", { class: "row between" },
      h("h3", null, `Current genome: ${versionName(current?.version || 0)}`),
      current && may("evolution:write") && may("human") && button("Roll back…",
        () => rollBack(found.agent, null, reload), { tone: "danger" })),
    current ? [h("p", { class: "soft small" }, when(current.at), ` by ${current.by}`,
      current.reason && `: ${current.reason}`),
    fold("What it sets", () => jsonBlock(current.genome || {}, "the current genome"))]
      : h("p", { class: "soft" }, "The agent is as configured.")),
    h("section", { class: "card" }, h("h3", null, "Lineage"),
      lineageTree(found, (version) => rollBack(found.agent, version, reload))),
    found.results.length > 0 && h("section", { class: "card" }, scorePlot(found.results),
      fold("Results", () => resultTable(found.results), true)),
    found.candidates.length > 0 && h("section", { class: "card" }, h("h3", null, "Candidates"),
      table("candidates", candidateColumns(found.agent), found.candidates.slice(0, 100)))];
}

/** What is shown before anything has happened. */
function beginning() {
  return empty("This agent is as configured, and was never evaluated.",
    h("ol", { class: "beginning" },
      h("li", null, "Make a case from a run that went well, or write one: a task with checks. The "
        + "form below does the first."),
      h("li", null, "Start an evaluation to see how many cases pass."),
      h("li", null, "Change the genome with ", h("code", null, "evoclaw genome set"),
        ", or let ", h("code", null, "evoclaw evolve"), " propose changes, and evaluate again.")));
}

/**
 * Restore a version, or the one before the current one.
 * @param {string} agent @param {number|null} version @param {() => Promise<void>} reload
 */
async function rollBack(agent, version, reload) {
  const to = version === null ? "the version before" : versionName(version);
  const reason = await confirmed(`Roll ${agent} back to ${to}?`, "New sessions use it at once; "
    + "existing sessions keep their genome. The current version stays in the lineage.",
  { action: "Roll back", ask: "Reason" });
  if (reason === null) return;
  const made = await post(`/v1/genomes/${encodeURIComponent(agent)}/rollback`, { version, reason });
  toast(`${agent} is rolled back: version ${made.version}`);
  await reload();
}

/** @param {string} agent @returns {Column<Api.CandidateView>[]} */
const candidateColumns = (agent) => [
  { title: "Candidate", main: true, cell: (one) =>
    h("a", { href: evolutionLink(agent, one.number) }, `Candidate ${one.number}`) },
  { title: "State", cell: candidateBadge },
  { title: "Proposed", cell: (one) => [when(one.at), ` by ${one.by}`] },
  { title: "Replaces", cell: (one) => versionName(one.parent_version) },
  { title: "Reason", wide: true, cell: (one) => one.reason || "–" },
  { title: "Runs", wide: true, cell: (one) => (one.runs.length ? runLinks(one.runs) : "–") },
];
