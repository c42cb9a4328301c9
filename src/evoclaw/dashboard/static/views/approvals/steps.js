// @ts-check
// Steps of workflows that can be approved from now on, for all runs of a definition.

import { get, post } from "../../api.js";
import { h } from "../../dom.js";
import { may } from "../../live.js";
import { button, confirmed, fold, load, table, toast } from "../../components.js";
import { argumentList, visible } from "./arguments.js";

/** @typedef {Api.ApprovableStep & {flow: Api.DefinitionView}} StepRow */

/**
 * Show the steps that can be approved; nothing if there is no workflow, or it may not be read.
 * @param {HTMLElement} section @param {HTMLElement} place @param {AbortSignal} signal
 */
export function workflowSteps(section, place, signal) {
  section.hidden = true;
  if (!may("workflows:read")) return null;
  const ask = async () => (await get("/v1/workflows", null, { signal })).items
    .flatMap((flow) => (flow.approvable || []).map((step) => ({ ...step, flow })));
  const again = () => load(place, ask, show, signal);
  /** @type {Column<StepRow>[]} */
  const columns = [
    { title: "Workflow", main: true, cell: (row) => row.flow.name },
    { title: "Step", cell: (row) => h("code", null, row.name) },
    { title: "Does", cell: (row) => (row.tool
      ? fold(`calls ${row.tool}`, () => argumentList(row.arguments))
      : visible(`asks “${row.message || ""}”`)) },
    { title: "Approved", cell: (row) => (row.approval_id ? `always, by ${row.approved_by}`
      : "asked in each run") },
  ];
  if (may("human") && may("admin")) columns.push({ title: "", cell: (row) => action(row, again) });
  /** @param {StepRow[]} rows */
  const show = (rows) => {
    section.hidden = rows.length === 0;
    return table("workflow steps", columns, rows);
  };
  return again();
}

/** @param {StepRow} row @param {() => unknown} again */
function action(row, again) {
  const name = `${row.name} of ${row.flow.name}`;
  const { approval_id: approval } = row;
  if (approval) {
    return button("Withdraw", async () => {
      await post(`/v1/approvals/${encodeURIComponent(approval)}/withdraw`);
      toast(`Step ${name} needs approval again`);
      await again();
    }, { label: `Withdraw the approval of step ${name}` });
  }
  return button("Always approve…", async () => {
    const sure = await confirmed(`Always approve step ${name}?`,
      `This covers ${row.covers}.`, { action: "Always approve", tone: "primary" });
    if (sure === null) return;
    const path = `/v1/workflows/${encodeURIComponent(row.flow.name)}/steps/`
      + `${encodeURIComponent(row.name)}/approve`;
    await post(path, { sha256: row.flow.sha256 });
    toast(`Step ${name} is always approved now`);
    await again();
  }, { label: `Always approve step ${name}` });
}
