// @ts-check
// One run of a workflow: its steps as they happen, and answers to those that wait for a person.

import { follow, get, post, postEmpty } from "../../api.js";
import { h, perFrame, replace } from "../../dom.js";
import { duration } from "../../format.js";
import { may } from "../../live.js";
import { button, confirmed, facts, failed, fold, jsonBlock, textBlock, toast, when }
  from "../../components.js";
import { flowLink, stateBadge } from "./facts.js";

const ENDED = ["succeeded", "failed", "cancelled"];
/** @type {{[decision: string]: string}} */
const ANSWERS = { approve: "Approve", deny: "Deny", retry: "Retry the step", skip: "Skip the step",
  fail: "Fail the workflow" };

/**
 * Show one run, live until it has ended.
 * @param {HTMLElement} root @param {string} name @param {string} id @param {AbortSignal} signal
 */
export async function showWorkflowRun(root, name, id, signal) {
  const path = `/v1/workflow-runs/${encodeURIComponent(id)}`;
  const body = h("div", { class: "view" });
  replace(root, h("p", { class: "back" },
    h("a", { href: flowLink(name) }, `← Workflow ${name}`)), body);
  let asked = 0;
  const draw = async () => {
    const turn = asked += 1;
    try {
      const run = await get(path, null, { signal });
      if (turn === asked && !signal.aborted) replace(body, shown(run, path, draw));
    } catch (cause) {
      if (cause.name !== "AbortError" && !signal.aborted) replace(body, failed(cause, draw));
    }
  };
  await draw();
  const soon = perFrame(draw);
  follow(`${path}/events`, { signal, onEvent: soon }).catch((cause) => {
    if (!signal.aborted) toast(cause.message, "bad");
  });
}

/** @param {any} run @param {string} path @param {() => Promise<void>} draw */
function shown(run, path, draw) {
  const over = ENDED.includes(run.state);
  return [
    h("section", { class: "card" },
      h("div", { class: "row between" },
        h("div", { class: "row" }, h("h2", null,
          h("a", { href: flowLink(run.name) }, run.name)), stateBadge(run.state)),
        !over && may("workflows:run") && button("Cancel…", () => cancel(run, path, draw),
          { tone: "danger", label: "Cancel the workflow run" })),
      facts([["id", h("code", null, run.id)], ["started", when(run.started_at)],
        ["took", run.ended_at && duration(run.ended_at - run.started_at)],
        ["scheduled for", run.scheduled_for && when(run.scheduled_for)],
        ["started by", run.user], ["error", run.error]]),
      Object.keys(run.inputs || {}).length > 0 && fold("Inputs",
        () => jsonBlock(run.inputs, "inputs")),
      run.output !== undefined && run.output !== null && fold("Output",
        () => value(run.output, "output"), true)),
    h("h2", null, "Steps"),
    h("ol", { class: "flow-steps" }, (run.steps || []).map(
      (/** @type {any} */ step) => stepShown(step, run.name, path, draw)))];
}

/**
 * @param {any} step @param {string} flow @param {string} path
 * @param {() => Promise<void>} draw
 */
function stepShown(step, flow, path, draw) {
  const waits = step.state === "waiting" && !(step.answers || []).length && !step.due;
  return h("li", { class: "card", "aria-label": `step ${step.name}` },
    h("div", { class: "row" }, h("strong", null, step.name),
      h("span", { class: "soft" }, step.kind), stateBadge(step.state),
      step.attempts > 1 && h("span", { class: "soft small" }, `attempt ${step.attempts}`),
      step.ended_at && step.started_at && h("span", { class: "soft small" },
        duration(step.ended_at - step.started_at)),
      step.due && h("span", { class: "soft small" }, "continues ", when(step.due))),
    step.asked && h("p", null, step.asked), step.error && h("p", null, step.error),
    answers(step, path, draw),
    waits && h("p", null, h("a", { href: "#/approvals" }, "Show pending approvals")),
    (step.run_ids || []).length > 0 && h("p", { class: "row small" }, step.run_ids.map(
      (/** @type {string} */ id, /** @type {number} */ index) =>
        h("a", { href: `#/runs/${encodeURIComponent(id)}` },
          step.run_ids.length > 1 ? `run ${index + 1}` : "run"))),
    step.workflow_id && h("p", { class: "small" },
      h("a", { href: flowLink(flow, step.workflow_id) }, "Workflow run")),
    step.output !== undefined && step.output !== null && fold("Output",
      () => value(step.output, `output of ${step.name}`)));
}

/** @param {any} step @param {string} path @param {() => Promise<void>} draw */
function answers(step, path, draw) {
  const allowed = step.answers || [];
  if (!allowed.length) return null;
  if (!may("human")) {
    return h("p", { class: "soft small" },
      "Only a person may answer: your token lacks the scope 'human'.");
  }
  return h("div", { class: "row" }, allowed.map((/** @type {string} */ decision) =>
    button(ANSWERS[decision] || decision, async () => {
      await post(`${path}/answer`, { step: step.name, decision });
      await draw();
    }, { tone: ["approve", "retry"].includes(decision) ? "primary" : "",
      label: `${ANSWERS[decision] || decision}: ${step.name}` })));
}

/** @param {any} found @param {string} label */
const value = (found, label) => (typeof found === "string" ? textBlock(found, label)
  : jsonBlock(found, label));

/** @param {any} run @param {string} path @param {() => Promise<void>} draw */
async function cancel(run, path, draw) {
  const sure = await confirmed(`Cancel this run of ${run.name}?`,
    "The runs it started are cancelled too.", { action: "Cancel the run" });
  if (sure === null) return;
  await postEmpty(`${path}/cancel`);
  await draw();
}
