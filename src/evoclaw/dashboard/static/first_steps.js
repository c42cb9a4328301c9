// @ts-check
// The first steps: a model that works, a machine that is online, and a first question.

import { get, post } from "./api.js";
import { h, oneLine, replace } from "./dom.js";
import { duration } from "./format.js";
import { fleet, may, on, runs } from "./live.js";
import { badge, busy, button, field } from "./components.js";
import { invitation } from "./views/settings/pair.js";

const INVITED_MINUTES = 60;
const NO_AGENT = "No agent is configured: add an [[agents]] table to evoclaw.toml.";
const EXAMPLE = "What can you do on this machine?";

/** @typedef {{agent: string, check: any, edges: any[], ended: boolean}} Progress */

/** Whether the token sees the first steps: they are for the person who sets the service up. */
export const maySetUp = () => may("admin");

/**
 * Show the first steps with live marks.
 * @param {HTMLElement} place
 * @param {AbortSignal} signal
 * @param {{ask?: (message: string) => void, whenDone?: () => void,
 *   agents?: Promise<Api.AgentList>}} [options] `ask` puts an
 *   example where a question is written; without it there is a field here. `whenDone` is called
 *   instead of showing steps that are all done. `agents`: the agents, if they are loaded already.
 */
export async function showFirstSteps(place, signal, { ask, whenDone, agents } = {}) {
  const found = await progress(signal, agents || get("/v1/agents", null, { signal }));
  if (signal.aborted) return;
  const steps = new FirstSteps(place, found, signal, ask, whenDone);
  on("fleet", () => steps.draw(), signal);
  on("runs", () => steps.draw(), signal);
  steps.draw();
}

/**
 * What is done already.
 * @param {AbortSignal} signal @param {Promise<Api.AgentList>} listed @returns {Promise<Progress>}
 */
async function progress(signal, listed) {
  const [{ agents }, { items }, ended] = await Promise.all([
    listed, get("/v1/fleet", null, { signal }),
    get("/v1/runs", { state: "ended", limit: 1 }, { signal })]);
  const agent = agents[0]?.name || "";
  const check = agent ? await get(`/v1/agents/${encodeURIComponent(agent)}/model-check`, null,
    { signal }) : { ok: null, model: "", problem: NO_AGENT };
  const [last] = ended.items;
  if (last?.stop === "completed" && check.ok === null) check.ok = true;
  return { agent, check, edges: items, ended: Boolean(last) };
}

class FirstSteps {
  /**
   * @param {HTMLElement} place @param {Progress} found @param {AbortSignal} signal
   * @param {((message: string) => void)|undefined} ask @param {(() => void)|undefined} whenDone
   */
  constructor(place, found, signal, ask, whenDone) {
    this.place = place;
    this.whenDone = whenDone;
    this.found = found;
    this.signal = signal;
    this.over = false;
    this.inviting = new AbortController(); // aborted when another invitation replaces it
    this.modelState = h("p", { role: "status" });
    this.edges = h("p", { role: "status" });
    this.invited = h("div");
    this.invite = this.inviteForm();
    this.model = step(1, "Check the model", this.modelBody());
    this.machine = step(2, "Connect a machine", [this.edges, may("fleet:write") && this.invite]);
    this.question = step(3, "Ask a question", questionBody(ask, signal));
    this.said = h("p", { class: "soft", role: "status" });
  }

  get isModelDone() {
    return this.found.check.ok === true
      || [...runs.values()].some((run) => run.stop === "completed");
  }

  get onlineEdges() {
    const known = fleet.size ? [...fleet.values()] : this.found.edges;
    return known.filter((edge) => edge.online);
  }

  get hasEndedRun() {
    return this.found.ended || [...runs.values()].some((run) => run.state === "ended");
  }

  draw() {
    if (this.over || this.signal.aborted) return;
    const edges = this.onlineEdges;
    const done = [this.isModelDone, edges.length > 0, this.hasEndedRun];
    const all = done.every(Boolean);
    if (all && this.whenDone) {
      this.over = true;
      this.whenDone();
      return;
    }
    mark(this.model, done[0]);
    mark(this.machine, done[1]);
    mark(this.question, done[2]);
    replace(this.edges, done[1] ? `Online: ${edges.map((edge) => edge.agent_id).join(", ")}`
      : "No machine is online yet. Agents run their tools on the machines that you connect.");
    this.invite.hidden = done[1] && !this.invited.firstChild;
    this.drawModel();
    replace(this.said, all ? "All three steps are done."
      : `${done.filter(Boolean).length} of 3 done.`);
    if (this.place.contains(this.model.element)) return;
    replace(this.place, h("section", { class: "first-steps", "aria-label": "First steps" },
      h("h2", null, "First steps"), this.said,
      h("ol", null, this.model.element, this.machine.element, this.question.element)));
  }

  modelBody() {
    const test = button("Test the model", async () => {
      const path = `/v1/agents/${encodeURIComponent(this.found.agent)}/model-check`;
      replace(this.modelState, "Waiting for the answer of the model…");
      try {
        this.found.check = await post(path, {}, { signal: this.signal });
      } finally {
        this.drawModel();
      }
      this.draw();
    });
    return [this.modelState, h("div", { class: "row" }, test,
      h("span", { class: "soft small" }, "Sends one short request."))];
  }

  drawModel() {
    const { ok, model, problem, answer, seconds } = this.found.check;
    const name = model || "the model";
    if (ok && answer) {
      replace(this.modelState, `${name} answered “${oneLine(answer, 40)}” in `
        + `${duration(seconds)}.`);
    } else if (this.isModelDone) replace(this.modelState, `${name} has answered.`);
    else if (problem) replace(this.modelState, badge("bad", "not working"), " ", problem);
    else replace(this.modelState, `${name} has not been tested yet.`);
  }

  inviteForm() {
    const name = h("input", { value: "my-machine", required: true, maxlength: "64",
      autocomplete: "off", pattern: "[A-Za-z0-9][A-Za-z0-9_\\-]*" });
    const go = h("button", { class: "primary" }, "Invite a machine");
    const form = h("form", { class: "flow-form" },
      h("div", { class: "row name-form" }, field("Name of the machine", name), go), this.invited);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      return busy(go, async () => {
        const id = name.value.trim();
        const made = await post("/v1/fleet/invitations",
          { agent_id: id, minutes: INVITED_MINUTES }, { signal: this.signal });
        const until = Date.now() / 1000 + INVITED_MINUTES * 60;
        this.inviting.abort();
        this.inviting = new AbortController();
        const either = AbortSignal.any([this.signal, this.inviting.signal]);
        replace(this.invited, invitation(id, made, until, either));
      });
    });
    return form;
  }
}

/** @param {number} number @param {string} text @param {any} body */
function step(number, text, body) {
  const sign = h("span", { class: "first-mark", "aria-hidden": "true" }, String(number));
  const state = h("span", { class: "unseen" });
  const element = h("li", { class: "card" }, sign,
    h("div", null, h("h3", null, text, state), body));
  return { element, sign, state, number };
}

/** @param {any} made @param {boolean} done */
function mark({ element, sign, state, number }, done) {
  sign.classList.toggle("done", done);
  replace(sign, done ? "✓" : String(number));
  replace(state, done ? ": done" : ": not done yet");
  element.dataset.done = String(done);
}

/** @param {((message: string) => void)|undefined} ask @param {AbortSignal} signal */
function questionBody(ask, signal) {
  if (ask) {
    return [h("p", null, "Type it below, or start with an example."),
      button(`“${EXAMPLE}”`, () => ask(EXAMPLE), { label: `Use the example: ${EXAMPLE}` })];
  }
  const message = h("textarea", { rows: "2", required: true });
  message.value = EXAMPLE;
  const go = h("button", { class: "primary" }, "Ask");
  const form = h("form", { class: "flow-form" }, field("Your question", message),
    h("div", { class: "row" }, go));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    return busy(go, async () => {
      const run = await post("/v1/runs", { message: message.value }, { signal });
      location.hash = `#/chat/${encodeURIComponent(run.session_id)}`;
    });
  });
  return form;
}
