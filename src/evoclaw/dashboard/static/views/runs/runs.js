// @ts-check
// Runs: message, status and cost; two runs can be compared.

import { get } from "../../api.js";
import { h, oneLine, perFrame, replace, unpressed } from "../../dom.js";
import { duration, money } from "../../format.js";
import { on, runs } from "../../live.js";
import { button, empty, field, runBadge, select, table, toast, when } from "../../components.js";

export const title = "Runs";

/** @type {{[state: string]: [string, (run: Api.RunView) => boolean]}} */
const STATES = {
  "": ["all", () => true],
  running: ["running or queued", (run) => ["running", "queued"].includes(run.state)],
  waiting: ["waiting for approval or an answer", (run) => run.state === "waiting"],
  completed: ["completed", (run) => run.stop === "completed"],
  trouble: ["failed or stopped early", (run) => run.state === "ended" && run.stop !== "completed"],
};
/** @type {{[state: string]: string}} */
const ASKED = { running: "running", waiting: "waiting", completed: "ended", trouble: "ended" };

/**
 * Show the newest runs live, and older ones on demand.
 * @param {HTMLElement} root @param {string[]} _args @param {AbortSignal} signal
 */
export async function mount(root, _args, signal) {
  const list = new RunList(signal);
  on("runs", list.draw, signal);
  replace(root, list.bar, list.place, h("div", { class: "row" }, list.more));
  list.drawNow();
}

class RunList {
  /** @param {AbortSignal} signal */
  constructor(signal) {
    this.signal = signal;
    this.state = "";
    /** @type {Api.RunView[]} */
    this.older = [];
    /** @type {string|null} */
    this.next = null;
    /** @type {string[]} */
    this.chosen = [];
    this.place = h("div");
    this.draw = perFrame(unpressed(this.place, signal, () => this.drawNow()));
    this.more = button("Older runs", () => this.fetch());
    this.compare = button("Compare", () => this.goCompare(), { tone: "primary" });
    this.note = h("span", { class: "small soft", role: "status" });
    const states = Object.entries(STATES).map(([key, [text]]) => [key, text]);
    this.bar = h("div", { class: "row runs-bar" },
      field("State", select(states, "", (state) => this.use(state))),
      h("div", { class: "row grow runs-compare" }, this.note, this.compare));
  }

  /** @param {string} state */
  use(state) {
    this.state = state;
    this.older = [];
    this.next = null;
    this.drawNow();
    if (state) this.fetch().catch((cause) => {
      if (cause.name !== "AbortError") toast(cause.message, "bad");
    });
  }

  async fetch() {
    const { state } = this;
    const before = this.next ?? (state ? "" : newest().at(-1)?.run_id ?? "");
    if (this.next === "") return toast("There are no older runs.");
    const page = await get("/v1/runs", { before, state: ASKED[state], limit: 50 },
      { signal: this.signal });
    if (state !== this.state) return; // another state was chosen meanwhile
    this.older = [...this.older, ...page.items];
    this.next = page.next || "";
    if (!page.items.length && !state) toast("There are no older runs.");
    this.drawNow();
  }

  /** @param {string} id @param {boolean} checked */
  choose(id, checked) {
    this.chosen = this.chosen.filter((one) => one !== id);
    if (checked) this.chosen = [...this.chosen, id].slice(-2); // the oldest choice is dropped
    for (const box of this.place.querySelectorAll("input")) {
      box.checked = this.chosen.includes(box.dataset.run || "");
    }
    this.drawChoice();
  }

  goCompare() {
    const [a, b] = this.chosen.map(encodeURIComponent);
    location.hash = `#/runs/${a}/compare/${b}`;
  }

  drawNow() {
    const known = new Map([...this.older, ...newest()].map((run) => [run.run_id, run]));
    const fits = STATES[this.state][1];
    const sorted = [...known.values()].filter(fits).sort((a, b) => began(b) - began(a));
    const held = document.activeElement?.getAttribute("data-run");
    replace(this.place, sorted.length ? table("runs, the newest first", this.columns(), sorted)
      : empty(this.state ? "No runs in this state." : "No runs yet. Send a message in Chat."));
    if (held) {
      /** @type {HTMLElement|null} */
      const again = this.place.querySelector(`[data-run="${CSS.escape(held)}"]`);
      again?.focus();
    }
    this.drawChoice();
  }

  drawChoice() {
    this.compare.hidden = this.chosen.length !== 2;
    const notes = ["Select two runs to compare them.", "Select one more.", ""];
    replace(this.note, notes[this.chosen.length]);
  }

  columns() {
    /** @param {Api.RunView} run */
    const pick = (run) => {
      const made = h("input", { type: "checkbox", data: { run: run.run_id },
        checked: this.chosen.includes(run.run_id),
        "aria-label": `Compare ${oneLine(run.asked || run.run_id, 60)}`,
        on: { change: () => this.choose(run.run_id, made.checked) } });
      return h("label", { class: "check" }, made);
    };
    return [{ title: "Compare", cell: pick }, ...COLUMNS];
  }
}

/** @type {Column<Api.RunView>[]} */
const COLUMNS = [
  { title: "Message", main: true, cell: (run) => h("a",
    { href: `#/runs/${encodeURIComponent(run.run_id)}` },
    oneLine(run.asked || "(no message)", 90)) },
  { title: "State", cell: runBadge },
  { title: "Agent", cell: (run) => run.agent },
  { title: "Started", cell: (run) => when(run.began_at) },
  { title: "Took", number: true, cell: (run) =>
    (run.ended_at ? duration(run.ended_at - began(run)) : "–") },
  { title: "Turns", number: true, cell: (run) => run.turns || 0 },
  { title: "Calls", number: true, cell: (run) => run.calls || 0 },
  { title: "Cost", number: true, cell: (run) => money(run.cost === undefined ? 0 : run.cost) },
];

/** @param {Api.RunView} run */
const began = (run) => run.began_at || 0;

function newest() {
  return [...runs.values()].sort((a, b) => began(b) - began(a));
}
