// @ts-check
// The actions of a run: stop, fork, check the replay, compare, download.

import { get, post, postEmpty, text } from "../../api.js";
import { h, oneLine } from "../../dom.js";
import { moment } from "../../format.js";
import { may } from "../../live.js";
import { badge, busy, button, dialog, failed, field, select, toast } from "../../components.js";

/** @param {string} id */
const path = (id, more = "") => `/v1/runs/${encodeURIComponent(id)}${more}`;

/**
 * The buttons of a run; `page` has the view, the recording and the signal.
 * @param {RunPage} page
 */
export function actions(page) {
  const { view, signal } = page;
  const stop = button("■ Stop", async () => {
    const { cancelled } = await postEmpty(path(view.run_id, "/cancel"), { signal });
    toast(cancelled ? "The run is being cancelled." : "The run has already ended.");
  }, { tone: "danger" });
  page.stopButton = stop;
  const write = may("runs:write");
  stop.hidden = true;
  page.rating.offer(false);
  // What comes and goes is first: the row ends at the right, so the others keep their places.
  return [write && stop, page.rating.element,
    write && button("Fork…", () => page.fork()),
    button("Check replay", () => checkReplay(view.run_id, signal)),
    button("Compare…", () => chooseOther(view, signal)),
    button("Download", () => download(view.run_id, signal))];
}

/**
 * Replay a run from its records, and show whether the outcome is the same.
 * @param {string} id @param {AbortSignal} signal
 */
async function checkReplay(id, signal) {
  const result = await postEmpty(path(id, "/replay"), { signal });
  dialog("Replay", result.same
    ? [h("p", null, badge("good", "identical")),
      h("p", null, `Replayed ${result.records} records, all identical byte for byte.`)]
    : [h("p", null, badge("bad", "different")),
      h("p", null, `It differs at record ${result.differs_at}: ${result.reason || "unknown"}.`),
      h("p", { class: "soft" }, `The ${result.records} records before it are identical.`)]);
}

/**
 * Ask where and how to fork a run, then open the new run.
 * @param {RunPage} page @param {number} [turn]
 */
export function forkDialog(page, turn) {
  const turns = page.recording.model.turns.map((one) => String(one.number));
  if (!turns.length) return toast("The run has no turns yet.");
  const where = select([...new Set(turns)], String(turn || turns.at(-1)));
  const message = h("textarea", { rows: "4", maxlength: "100000" });
  const model = h("input", { type: "text", maxlength: "200", autocomplete: "off",
    placeholder: page.recording.model.model });
  const problem = h("div", { role: "alert" });
  const go = h("button", { class: "primary" }, "Fork");
  const form = h("form", { class: "dialog-form", on: { submit: (event) => {
    event.preventDefault();
    busy(go, () => fork(page, made, problem,
      { turn: Number(where.value), message: message.value, model: model.value.trim() }));
  } } },
  field("Turn to run again", where, "Earlier turns are kept."),
  field("New message", message, "Optional. At turn 1 it replaces the original message."),
  field("Model", model, "Leave empty to use the agent's model."),
  problem, h("div", { class: "row end" }, go));
  const made = dialog("Fork this run", form);
  const closed = new AbortController();
  made.addEventListener("close", () => closed.abort());
  page.signal.addEventListener("abort", () => made.close(), { signal: closed.signal });
}

/**
 * @param {RunPage} page @param {HTMLDialogElement} made @param {HTMLElement} problem
 * @param {unknown} body
 */
async function fork(page, made, problem, body) {
  try {
    const run = await post(path(page.view.run_id, "/fork"), body, { signal: page.signal });
    made.close();
    location.hash = `#/runs/${encodeURIComponent(run.run_id)}`;
  } catch (cause) {
    if (cause.name !== "AbortError") problem.replaceChildren(failed(cause));
  }
}

/**
 * Ask which run to compare with.
 * @param {Api.RunView} view @param {AbortSignal} signal
 */
async function chooseOther(view, signal) {
  const { items } = await get("/v1/runs", { limit: 100 }, { signal });
  const others = items.filter((one) => one.run_id !== view.run_id)
    .map((one) => [one.run_id, `${moment(one.began_at)} · ${one.agent} · ${
      oneLine(one.asked || "(no message)", 50)}`]);
  const list = select([["", "Choose a run"], ...others], "");
  const typed = h("input", { type: "text", autocomplete: "off", class: "mono" });
  /** @param {SubmitEvent} event */
  const go = (event) => {
    event.preventDefault();
    const other = typed.value.trim() || list.value;
    if (!other) return toast("Choose a run first.");
    made.close();
    const ids = [view.run_id, other].map(encodeURIComponent);
    location.hash = `#/runs/${ids[0]}/compare/${ids[1]}`;
  };
  const made = dialog("Compare with another run",
    h("form", { class: "dialog-form", on: { submit: go } },
      field("A recent run", list), field("Or the id of a run", typed),
      h("div", { class: "row end" }, h("button", { class: "primary" }, "Compare"))));
}

/**
 * Download a text as a file.
 * @param {string} name @param {string} content @param {string} kind
 */
export function saveText(name, content, kind) {
  const address = URL.createObjectURL(new Blob([content], { type: kind }));
  if (!address.startsWith("blob:")) throw new Error("only a text created here can be saved");
  const link = h("a", { download: name });
  link.setAttribute("href", address);
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** @param {string} id @param {AbortSignal} signal */
async function download(id, signal) {
  const lines = await text(path(id, "/records"), { signal });
  saveText(`run-${id.replace(/[^\w.-]/g, "_")}.jsonl`, lines, "application/x-ndjson");
  toast("Saved. Replay it with `evoclaw replay`.");
}
