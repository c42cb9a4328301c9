// @ts-check
// One workflow: start it with inputs, its schedule, its runs and its definition.

import { del, get, post, put } from "../../api.js";
import { h, oneLine, replace } from "../../dom.js";
import { duration } from "../../format.js";
import { may } from "../../live.js";
import { busy, button, confirmed, empty, failed, field, table, toast, when }
  from "../../components.js";
import { DefinitionEditor, mayEdit } from "../../definition_editor.js";
import { argumentForm } from "../settings/arguments.js";
import { refreshing } from "../../refresh.js";
import { flowLink, scheduleText, stateBadge } from "./facts.js";

const HISTORY_LIMIT = 20;

/** Show one workflow. @param {HTMLElement} root @param {string} name @param {AbortSignal} signal */
export async function showWorkflow(root, name, signal) {
  const back = h("p", { class: "back" }, h("a", { href: "#/workflows" }, "← All workflows"));
  const about = h("section", { class: "card" }), start = h("section"), times = h("section");
  const history = h("section"), text = h("section", { class: "card" });
  const path = `/v1/workflows/${encodeURIComponent(name)}`;
  const editor = new DefinitionEditor({ path: `${path}/definition`, what: `workflow ${name}`,
    signal, saved: () => draw(), missing: () => empty("This workflow is defined in code.") });
  const draw = async () => {
    const { items } = await get("/v1/workflows", null, { signal });
    const flow = items.find((/** @type {any} */ one) => one.name === name);
    if (!flow) throw new Error(`Unknown workflow ${name}. It may have been deleted.`);
    if (signal.aborted) return flow;
    replace(about, h("h2", null, name), flow.description && h("p", null, flow.description),
      flow.problem ? h("p", { class: "definition-problem", role: "alert" }, flow.problem)
        : h("p", { class: "soft" }, `Steps: ${(flow.steps || []).join(", ")}`));
    replace(start, !flow.problem && may("workflows:run") && startForm(flow, signal));
    replace(times, !flow.problem && schedule(flow, path, editor, draw));
    return flow;
  };
  try {
    const flow = await draw();
    replace(root, back, about, start, times, h("h2", null, "Last runs"), history,
      h("h2", null, "Definition"), text);
    replace(text, editor.element, flow.is_file && mayEdit() && h("div", { class: "row end" },
      button("Delete…", () => remove(name, path, editor), { tone: "danger",
        label: `Delete workflow ${name}` })));
  } catch (cause) {
    if (cause.name !== "AbortError") replace(root, back, failed(cause));
    return;
  }
  await Promise.all([showHistory(history, name, signal), editor.load()]);
}

/** @param {any} flow @param {AbortSignal} signal */
function startForm(flow, signal) {
  const inputs = Object.entries(flow.inputs || {});
  const form = inputs.length > 0 && argumentForm({
    properties: Object.fromEntries(inputs.map(([name, one]) => [name, property(one)])),
    required: inputs.filter(([, one]) => isRequired(one)).map(([name]) => name) }, "Inputs");
  const go = h("button", { class: "primary" }, "Run");
  const made = h("form", { class: "card flow-form" }, h("h2", null, "Run"),
    form ? form.element : h("p", { class: "soft" }, "This workflow takes no inputs."),
    h("div", { class: "row" }, go));
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    return busy(go, async () => {
      const run = await post(`/v1/workflows/${encodeURIComponent(flow.name)}/runs`,
        { inputs: form ? form.values() : {} }, { signal });
      location.hash = flowLink(flow.name, run.id);
    });
  });
  return made;
}

/** @param {any} input */
const isRequired = (input) => input.required ?? (input.default === undefined
  || input.default === null);

/** The schema of an input. @param {any} input */
function property({ type = "string", description = "", default: usual }) {
  const about = usual === undefined || usual === null ? description
    : `${description} [${typeof usual === "object" ? JSON.stringify(usual) : usual}]`.trim();
  return { type: type === "any" ? undefined : type, description: about };
}

/**
 * The schedule, and a form that changes it.
 * @param {any} flow @param {string} path @param {DefinitionEditor} editor
 * @param {() => Promise<any>} draw
 */
function schedule(flow, path, editor, draw) {
  const now = flow.schedule || {};
  const shown = h("p", null, scheduleText(flow));
  if (!flow.is_file || !mayEdit()) {
    return h("section", { class: "card" }, h("h2", null, "Schedule"), shown);
  }
  const cron = h("input", { value: now.cron || "", placeholder: "0 7 * * 1-5", class: "mono" });
  const every = h("input", { type: "number", min: "1", step: "1", value: now.every_s || "" });
  const zone = h("input", { value: now.timezone || "", placeholder: "UTC" });
  const enabled = h("input", { type: "checkbox", checked: now.enabled !== false });
  const hasInputs = Object.keys(flow.inputs || {}).length > 0;
  const inputs = h("textarea", { rows: "2", class: "mono",
    value: JSON.stringify(now.inputs || {}) });
  const save = h("button", { class: "primary" }, "Save the schedule");
  const form = h("form", { class: "card flow-form" }, h("h2", null, "Schedule"), shown,
    h("div", { class: "settings-form" },
      field("Cron", cron, "minute, hour, day of month, month, day of week"),
      field("Or interval, in seconds", every), field("Time zone for cron", zone),
      hasInputs && field("Inputs for each scheduled run, as JSON", inputs)),
    h("label", { class: "check" }, enabled, " Enabled"),
    h("div", { class: "row" }, save,
      h("span", { class: "soft small" },
        "Leave cron and interval empty to run it only manually.")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    return busy(save, async () => {
      if (editor.changed) throw new Error("Save or discard your changes to the definition first.");
      const saved = await put(`${path}/schedule`, { sha256: await editor.digest(),
        cron: cron.value.trim(), every_s: every.value ? Number(every.value) : null,
        timezone: zone.value.trim(), inputs: hasInputs ? parsed(inputs.value) : null,
        enabled: enabled.checked });
      editor.use(saved, true);
      toast("Saved the schedule");
      await draw();
    });
  });
  return form;
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text || "{}");
  } catch (cause) {
    throw new Error(`The inputs are not valid JSON: ${cause.message}`, { cause });
  }
}

/** @param {HTMLElement} place @param {string} name @param {AbortSignal} signal */
function showHistory(place, name, signal) {
  const work = () => get("/v1/workflow-runs", { name, limit: HISTORY_LIMIT }, { signal });
  return refreshing(place, work,
    (/** @type {any} */ { items }) => (items.length ? table(`runs of ${name}`, COLUMNS, items)
      : empty("This workflow has not run yet.")), signal);
}

/** @type {Column<any>[]} */
const COLUMNS = [
  { title: "Started", main: true, cell: (run) => h("a", { href: flowLink(run.name, run.id) },
    when(run.started_at)) },
  { title: "State", cell: (run) => stateBadge(run.state) },
  { title: "Took", number: true, cell: (run) =>
    (run.ended_at ? duration(run.ended_at - run.started_at) : "–") },
  { title: "Started by", cell: (run) => (run.scheduled_for ? "schedule"
    : run.parent ? "another workflow" : run.user || "–") },
  { title: "Result", wide: true, cell: (run) => oneLine(run.error || resultText(run.output), 120) },
];

/** @param {any} output */
const resultText = (output) => (output === undefined || output === null ? "–"
  : typeof output === "string" ? output : JSON.stringify(output));

/** @param {string} name @param {string} path @param {DefinitionEditor} editor */
async function remove(name, path, editor) {
  const sure = await confirmed(`Delete the workflow ${name}?`, "This deletes its file and its "
    + "schedule. Runs that have started continue, and stay in the history.", { action: "Delete" });
  if (sure === null) return;
  await del(path, { sha256: await editor.digest() });
  toast(`Deleted workflow ${name}`);
  location.hash = "#/workflows";
}
