// Runs: what was asked, how it stands, what it cost.

import { get } from "../api.js";
import { h, oneLine, replace } from "../dom.js";
import { duration, money } from "../format.js";
import { on, runs } from "../live.js";
import { button, empty, runBadge, table, toast, when } from "../parts.js";

export const title = "Runs";

const COLUMNS = [
  { title: "asked", cell: (run) => h("a", { href: `#/runs/${run.run_id}` },
    oneLine(run.asked || "(nothing)", 90)) },
  { title: "state", cell: runBadge },
  { title: "agent", cell: (run) => run.agent },
  { title: "began", cell: (run) => when(run.began_at) },
  { title: "took", number: true, cell: (run) =>
    (run.ended_at ? duration(run.ended_at - run.began_at) : "–") },
  { title: "turns", number: true, cell: (run) => run.turns || 0 },
  { title: "calls", number: true, cell: (run) => run.calls || 0 },
  { title: "cost", number: true, cell: (run) => money(run.cost === undefined ? 0 : run.cost) },
];

/** Show the newest runs, as they change, and older ones on demand. */
export async function mount(root, _args, signal) {
  const place = h("div");
  let older = [], next = null;
  const more = button("Older runs", async () => {
    const before = next ?? newest().at(-1)?.run_id ?? "";
    const page = await get("/v1/runs", { before, limit: 50 }, { signal });
    older = [...older, ...page.items];
    next = page.next || "";
    if (!page.items.length) toast("there are no older runs");
    draw();
  });
  const draw = () => {
    const known = new Map([...older, ...newest()].map((run) => [run.run_id, run]));
    const sorted = [...known.values()].sort((a, b) => b.began_at - a.began_at);
    replace(place, sorted.length ? table("runs, the newest first", COLUMNS, sorted)
      : empty("Nothing was asked yet. Say something in Chat."));
  };
  on("runs", draw, signal);
  draw();
  replace(root, place, h("div", { class: "row" }, more));
}

function newest() {
  return [...runs.values()].sort((a, b) => b.began_at - a.began_at);
}
