// @ts-check
// Agents: what each one is, how often it ran, and one agent with its runs and its definition.

import { get } from "../../api.js";
import { h, oneLine, replace } from "../../dom.js";
import { count } from "../../format.js";
import { may } from "../../live.js";
import { button, missingScope, table, when } from "../../components.js";
import { DefinitionEditor, mayEdit, nameForm } from "../../definition_editor.js";
import { refreshing } from "../../refresh.js";
import { showAgent } from "./agent.js";
import { agentLink, agentTemplate, flowLinks, limitsOf, machineOf, toolsOf } from "./facts.js";

export const title = "Agents";

/**
 * Show all agents, or one (`#/agents/NAME`).
 * @param {HTMLElement} root @param {string[]} args @param {AbortSignal} signal
 */
export async function mount(root, args, signal) {
  if (!may("agents:invoke")) {
    return replace(root, missingScope("see agents", "agents:invoke"));
  }
  if (args[0]) return showAgent(root, args[0], signal);
  const list = h("section", { "aria-label": "Agents" }), fresh = h("section");
  const open = () => newAgent(fresh, signal);
  replace(root, h("div", { class: "row between" },
    h("p", { class: "soft" }, "An agent is a model with a prompt, tools and limits. "
      + "Requests that name no agent go to the first one."),
    mayEdit() && button("New agent", open, { tone: "primary" })), fresh, list);
  return refreshing(list, () => everything(signal), shown, signal);
}

/** @param {AbortSignal} signal */
async function everything(signal) {
  const [{ agents }, counts, flows] = await Promise.all([
    get("/v1/agents", null, { signal }),
    may("runs:read") ? get("/v1/run-counts", null, { signal }) : { items: [] },
    may("workflows:read") ? get("/v1/workflows", null, { signal }) : { items: [] }]);
  const runs = new Map(counts.items.map((/** @type {any} */ one) => [one.agent, one]));
  return agents.map((/** @type {any} */ agent) => ({ ...agent, ran: runs.get(agent.name),
    flows: flows.items.filter((/** @type {any} */ flow) =>
      (flow.agents || []).includes(agent.name)) }));
}

/** @param {any[]} agents */
const shown = (agents) => table("agents", COLUMNS, agents);

/** @type {Column<any>[]} */
const COLUMNS = [
  { title: "Agent", main: true, cell: (agent) => [
    h("a", { href: agentLink(agent.name) }, agent.name),
    agent.description && h("div", { class: "small soft" }, oneLine(agent.description, 90))] },
  { title: "Model", cell: (agent) => agent.model || "default" },
  { title: "Tools", cell: (agent) => oneLine(toolsOf(agent), 60) },
  { title: "Machine", cell: machineOf },
  { title: "Limits", cell: limitsOf },
  { title: "Used by", cell: (agent) => (agent.flows.length ? h("span", null,
    flowLinks(agent.flows)) : "–") },
  { title: "Runs", number: true, cell: (agent) => count(agent.ran?.runs || 0) },
  { title: "Last run", cell: (agent) => when(agent.ran?.last_at) },
];

/** @param {HTMLElement} place @param {AbortSignal} signal */
function newAgent(place, signal) {
  const { form, name } = nameForm("agent", (chosen) => edit(chosen));
  /** @param {string} chosen */
  const edit = (chosen) => {
    const path = `/v1/agents/${encodeURIComponent(chosen)}/definition`;
    const editor = new DefinitionEditor({ path, what: `agent ${chosen}`, signal,
      template: agentTemplate(chosen),
      saved: () => { location.hash = agentLink(chosen); } });
    replace(place, h("section", { class: "card" }, h("h2", null, `New agent ${chosen}`),
      editor.element));
    editor.load();
    editor.area.focus();
  };
  replace(place, h("div", { class: "card" }, form));
  name.focus();
}
