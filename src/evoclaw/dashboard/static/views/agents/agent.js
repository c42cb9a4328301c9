// @ts-check
// One agent: its facts, a message to it, its runs and its definition.

import { del, get, post } from "../../api.js";
import { h, oneLine, replace } from "../../dom.js";
import { duration, money } from "../../format.js";
import { may } from "../../live.js";
import { badge, busy, button, confirmed, empty, facts, failed, field, missingScope, runBadge,
  table, toast, when } from "../../components.js";
import { DefinitionEditor, mayEdit } from "../../definition_editor.js";
import { refreshing } from "../../refresh.js";
import { agentTemplate, flowLinks, limitsOf, machineOf, toolsOf } from "./facts.js";

const HISTORY_LIMIT = 20;

/** Show one agent. @param {HTMLElement} root @param {string} name @param {AbortSignal} signal */
export async function showAgent(root, name, signal) {
  const back = h("p", { class: "back" }, h("a", { href: "#/agents" }, "← All agents"));
  const about = h("section", { class: "card" }), history = h("section");
  const path = `/v1/agents/${encodeURIComponent(name)}`;
  const ask = () => Promise.all([get(path, null, { signal }),
    may("workflows:read") ? get("/v1/workflows", null, { signal }) : { items: [] }]);
  try {
    const [agent, flows] = await ask();
    if (signal.aborted) return;
    const draw = async () => {
      const [now, used] = await ask();
      if (!signal.aborted) replace(about, aboutShown(now, used.items, path));
    };
    replace(about, aboutShown(agent, flows.items, path));
    replace(root, back, about, may("runs:write") && runForm(name, signal),
      h("h2", null, "Last runs"), history, h("h2", null, "Definition"),
      definition(name, path, signal, draw));
  } catch (cause) {
    if (cause.name !== "AbortError") replace(root, back, failed(cause));
    return;
  }
  await showHistory(history, name, signal);
}

/** @param {any} agent @param {any[]} flows @param {string} path */
function aboutShown(agent, flows, path) {
  const used = flows.filter((flow) => (flow.agents || []).includes(agent.name));
  const answer = h("span", { role: "status" });
  return [
    h("h2", null, agent.title ? `${agent.name}: ${agent.title}` : agent.name),
    agent.description && h("p", null, agent.description),
    facts([["model", h("span", { class: "row" }, agent.model || "the default model",
      may("admin") && button("Test the model", () => testModel(path, answer)), answer)],
    ["tools", toolsOf(agent)], ["skills", agent.skills.join(", ")], ["machine", machineOf(agent)],
    ["autonomy", agent.autonomy || "supervised"], ["limits", limitsOf(agent)],
    ["used by", used.length ? h("span", null, flowLinks(used)) : ""]])];
}

/** @param {string} path @param {HTMLElement} place */
async function testModel(path, place) {
  const found = await post(`${path}/model-check`, {});
  replace(place, found.ok ? badge("good", `answered in ${duration(found.seconds)}`)
    : [badge("bad", "does not answer"), " ", oneLine(found.problem, 300)]);
}

/** A message to an agent, in a new session. @param {string} name @param {AbortSignal} signal */
function runForm(name, signal) {
  const message = h("textarea", { rows: "2", required: true });
  const go = h("button", { class: "primary" }, "Run");
  const form = h("form", { class: "card agent-run" },
    field(`Message to ${name}`, message), h("div", { class: "row" }, go));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    return busy(go, async () => {
      const run = await post("/v1/runs", { message: message.value, agent: name }, { signal });
      location.hash = `#/chat/${encodeURIComponent(run.session_id)}`;
    });
  });
  return form;
}

/** @param {HTMLElement} place @param {string} name @param {AbortSignal} signal */
function showHistory(place, name, signal) {
  if (!may("runs:read")) return replace(place, missingScope("see runs", "runs:read"));
  return refreshing(place, () => get("/v1/runs", { agent: name, limit: HISTORY_LIMIT }, { signal }),
    (/** @type {any} */ { items }) => (items.length ? table(`runs of ${name}`, COLUMNS, items)
      : empty("This agent has not run yet.")), signal);
}

/** @type {Column<any>[]} */
const COLUMNS = [
  { title: "Message", main: true, cell: (run) => h("a",
    { href: `#/runs/${encodeURIComponent(run.run_id)}` },
    oneLine(run.asked || "(no message)", 80)) },
  { title: "State", cell: runBadge },
  { title: "Started", cell: (run) => when(run.began_at) },
  { title: "Took", number: true, cell: (run) =>
    (run.ended_at ? duration(run.ended_at - run.began_at) : "–") },
  { title: "Cost", number: true, cell: (run) => money(run.cost === undefined ? 0 : run.cost) },
  { title: "Session", cell: (run) =>
    h("a", { href: `#/chat/${encodeURIComponent(run.session_id)}` }, "open") },
];

/**
 * The definition, with a button that deletes it.
 * @param {string} name @param {string} path @param {AbortSignal} signal @param {() => any} saved
 */
function definition(name, path, signal, saved) {
  const place = h("section", { class: "card" });
  const options = { path: `${path}/definition`, what: `agent ${name}`, signal, saved };
  const stored = () => {
    const editor = new DefinitionEditor({ ...options, missing: () => builtIn(name, create) });
    replace(place, editor.element, mayEdit() && h("div", { class: "row end" },
      button("Delete…", () => remove(name, path, editor), { tone: "danger",
        label: `Delete agent ${name}` })));
    return editor.load();
  };
  const create = () => {
    const editor = new DefinitionEditor({ ...options, template: agentTemplate(name),
      saved: () => { saved(); stored(); } });
    replace(place, editor.element);
    return editor.load();
  };
  stored();
  return place;
}

/** @param {string} name @param {() => any} create */
function builtIn(name, create) {
  return empty(`${name} is built in. To change it, define it in the settings file.`,
    mayEdit() && button("Define it in the settings file", create));
}

/** @param {string} name @param {string} path @param {DefinitionEditor} editor */
async function remove(name, path, editor) {
  const sha256 = await editor.digest();
  const sure = await confirmed(`Delete the agent ${name}?`, "It is removed from the settings file. "
    + "Its sessions and runs are kept. Requests that name no agent go to the first one left.",
  { action: "Delete" });
  if (sure === null) return;
  await del(path, { sha256 });
  toast(`Deleted agent ${name}`);
  location.hash = "#/agents";
}
