// @ts-check
// Evolution: the genomes of agents, their candidates, evaluations and cases.

import { get } from "../../api.js";
import { h, replace } from "../../dom.js";
import { count } from "../../format.js";
import { may } from "../../live.js";
import { badge, missingScope, table, when } from "../../components.js";
import { refreshing } from "../../refresh.js";
import { showAgentEvolution } from "./agent.js";
import { showCandidate } from "./candidate.js";
import { evolutionLink, scoreText, versionName } from "./facts.js";

export const title = "Evolution";

/**
 * Show all agents, one (`#/evolution/AGENT`), or a candidate of it (`#/evolution/AGENT/NUMBER`).
 * @param {HTMLElement} root @param {string[]} args @param {AbortSignal} signal
 */
export async function mount(root, args, signal) {
  if (!may("evolution:read")) {
    return replace(root, missingScope("see genomes", "evolution:read"));
  }
  const [agent, candidate] = args;
  if (candidate) return showCandidate(root, agent, candidate, signal);
  if (agent) return showAgentEvolution(root, agent, signal);
  const list = h("section", { "aria-label": "Agents" });
  replace(root, h("p", { class: "soft" }, "A genome is what may change about an agent: its texts "
    + "and small numbers. Cases say whether a change helped. Choose an agent to see its versions, "
    + "to decide on candidates, and to start an evaluation."), list);
  return refreshing(list, () => get("/v1/evolution", null, { signal }),
    (/** @type {Api.EvolutionOverview} */ { items }) => table("genomes of agents", COLUMNS, items),
    signal);
}

/** @type {Column<Api.EvolutionStatus>[]} */
const COLUMNS = [
  { title: "Agent", main: true, cell: (one) =>
    h("a", { href: evolutionLink(one.agent) }, one.agent) },
  { title: "Genome", cell: (one) => versionName(one.version) },
  { title: "Candidates", cell: (one) => [one.candidates ? `${count(one.candidates)} open` : "none",
    one.waiting.map((number) => [" ", h("a", { href: evolutionLink(one.agent, number) },
      badge("warn", `${number} waits for you`))])] },
  { title: "Campaign", cell: (one) => one.status || "off" },
  { title: "Last result", cell: (one) => (one.result ? scoreText(one.result) : "not evaluated") },
  { title: "When", cell: (one) => (one.evaluating ? badge("busy", "running")
    : when(one.result?.at)) },
];
