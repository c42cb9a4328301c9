// @ts-check
// The cases of an agent, and a form that makes one from a run.

import { get, post } from "../../api.js";
import { h, replace } from "../../dom.js";
import { some } from "../../format.js";
import { may } from "../../live.js";
import { badge, busy, empty, failed, field, select, table, toast } from "../../components.js";

/**
 * Show the cases.
 * @param {HTMLElement} place @param {string} agent @param {AbortSignal} signal
 * @param {(cases: Api.CaseView[]) => void} known called with the cases of this agent
 */
export async function showCases(place, agent, signal, known) {
  const list = h("div");
  const draw = async () => {
    try {
      const { items, problems } = await get("/v1/cases", null, { signal });
      const own = items.filter((one) => !one.agent || one.agent === agent);
      known(own);
      replace(list, own.length ? table("cases", COLUMNS, own) : empty("No cases yet. A case is a "
        + "task with checks: a TOML file in the folder 'cases' of the data folder."),
      problems.map((problem) => h("p", { class: "definition-problem", role: "alert" }, problem)));
    } catch (cause) {
      if (cause.name !== "AbortError") replace(list, failed(cause, draw));
    }
  };
  replace(place, h("h3", null, "Cases"), list,
    may("evolution:write") && may("human") && addForm(signal, draw));
  await draw();
}

/** @type {{[split: string]: string}} */
const TONES = { train: "quiet", validation: "busy", sealed: "warn" };

/** @type {Column<Api.CaseView>[]} */
const COLUMNS = [
  { title: "Case", main: true, cell: (one) => one.name },
  { title: "Split", cell: (one) => badge(TONES[one.split] || "quiet", one.split) },
  { title: "Agent", cell: (one) => one.agent || "every agent" },
  { title: "Calls", cell: (one) => (one.recorded ? "answered from a record" : "executed") },
  { title: "Checks", number: true, cell: (one) => some(one.checks, "check") },
];

/** @param {AbortSignal} signal @param {() => Promise<void>} draw */
function addForm(signal, draw) {
  const run = h("input", { required: true, class: "mono" });
  const name = h("input", { pattern: "[A-Za-z0-9][A-Za-z0-9_\\-]{0,63}" });
  const split = select(["train", "validation", "sealed"]);
  const go = h("button", null, "Add the case");
  return h("form", { class: "flow-form", on: { submit: (event) => {
    event.preventDefault();
    busy(go, async () => {
      const made = await post("/v1/cases", { run: run.value.trim(), name: name.value || null,
        split: split.value }, { signal });
      toast(`Added case ${made.name}`);
      run.value = name.value = "";
      await draw();
    });
  } } }, h("h4", null, "Make a case from a run"),
  h("div", { class: "settings-form" }, field("Run id", run),
    field("Name", name, "letters, digits, - and _; if empty, the id of the run"),
    field("Split", split)),
  h("div", { class: "row" }, go, h("span", { class: "soft small" },
    "Its successful calls are expected; edit the checks in the file if others matter.")));
}
