// @ts-check
// Workflows: the definitions with their schedules and last runs; one workflow; one run of it.

import { get } from "../../api.js";
import { h, oneLine, replace } from "../../dom.js";
import { may } from "../../live.js";
import { badge, button, empty, missingScope, table, when } from "../../components.js";
import { DefinitionEditor, mayEdit, nameForm } from "../../definition_editor.js";
import { refreshing } from "../../refresh.js";
import { flowLink, scheduleText, stateBadge } from "./facts.js";
import { showWorkflowRun } from "./run.js";
import { showWorkflow } from "./workflow.js";

export const title = "Workflows";

/**
 * Show all workflows, one (`#/workflows/NAME`), or a run of it (`#/workflows/NAME/ID`).
 * @param {HTMLElement} root @param {string[]} args @param {AbortSignal} signal
 */
export async function mount(root, args, signal) {
  if (!may("workflows:read")) {
    return replace(root, missingScope("see workflows", "workflows:read"));
  }
  const [name, run] = args;
  if (run) return showWorkflowRun(root, name, run, signal);
  if (name) return showWorkflow(root, name, signal);
  const list = h("section", { "aria-label": "Workflows" }), fresh = h("section");
  replace(root, h("div", { class: "row between" },
    h("p", { class: "soft" }, "A workflow runs a fixed sequence of steps: ask an agent, call a "
      + "tool, wait, ask a person."),
    mayEdit() && button("New workflow", () => newWorkflow(fresh, signal), { tone: "primary" })),
  fresh, list);
  return refreshing(list, () => everything(signal), shown, signal);
}

/** @param {AbortSignal} signal */
async function everything(signal) {
  const [{ items }, page] = await Promise.all([get("/v1/workflows", null, { signal }),
    get("/v1/workflow-runs", { limit: 200 }, { signal })]);
  return items.map((/** @type {any} */ flow) => ({ ...flow,
    last: page.items.find((/** @type {any} */ run) => run.name === flow.name) }));
}

/** @param {any[]} flows */
function shown(flows) {
  return flows.length ? table("workflows", COLUMNS, flows)
    : empty("No workflows yet. A workflow is a TOML file in the folder 'workflows' of the data "
      + "folder.");
}

/** @type {Column<any>[]} */
const COLUMNS = [
  { title: "Workflow", main: true, cell: (flow) => [
    h("a", { href: flowLink(flow.name) }, flow.name),
    flow.description && h("div", { class: "small soft" }, oneLine(flow.description, 90))] },
  { title: "Steps", cell: (flow) => (flow.problem
    ? h("span", null, badge("bad", "invalid"), " ", oneLine(flow.problem, 160))
    : oneLine((flow.steps || []).join(", "), 80)) },
  { title: "Schedule", cell: scheduleText },
  { title: "Last run", cell: (flow) => (flow.last ? h("a", { href: flowLink(flow.name,
    flow.last.id) }, stateBadge(flow.last.state), " ", when(flow.last.started_at)) : "–") },
];

/** @param {HTMLElement} place @param {AbortSignal} signal */
function newWorkflow(place, signal) {
  const { form, name } = nameForm("workflow", (chosen) => {
    const path = `/v1/workflows/${encodeURIComponent(chosen)}/definition`;
    const editor = new DefinitionEditor({ path, what: `workflow ${chosen}`, template: TEMPLATE,
      signal, saved: () => { location.hash = flowLink(chosen); } });
    replace(place, h("section", { class: "card" }, h("h2", null, `New workflow ${chosen}`),
      editor.element));
    editor.load();
    editor.area.focus();
  });
  replace(place, h("div", { class: "card" }, form));
  name.focus();
}

const TEMPLATE = `description = ""                # what it does, in one line

[inputs.what]
default = "the news"

# [schedule]
# cron = "0 7 * * 1-5"          # or every_s = 3600
# timezone = "Europe/Berlin"

[[steps]]
name = "ask"
kind = "agent"
agent = "evoclaw"
message = "Summarise {{ inputs.what }} in three sentences."
`;
