// @ts-check
// Compares two runs: timelines on one scale, and their differences.

import { get, text } from "../../api.js";
import { h, onAbort, oneLine, replace } from "../../dom.js";
import { count, duration, money } from "../../format.js";
import { badge, button, empty, load, runBadge, when } from "../../components.js";
import { changed } from "./changes.js";
import { Recording } from "./model.js";
import { Timeline } from "./timeline.js";

/** @typedef {{view: Api.RunView, run: RunModel, timeline: Timeline}} Compared */

/**
 * Show two runs side by side.
 * @param {HTMLElement} root @param {string} a @param {string} b @param {AbortSignal} signal
 */
export async function mountCompare(root, a, b, signal) {
  const ids = [a, b].map(encodeURIComponent);
  const above = h("div", { class: "compare" }), below = h("section", { class: "card" });
  replace(root, above, below);
  const both = load(above, () => Promise.all([a, b].map((id) => fetched(id, signal))),
    (found) => timelines(found, signal), signal);
  await Promise.all([both, load(below,
    () => get(`/v1/runs/${ids[0]}/compare/${ids[1]}`, null, { signal }), differences, signal)]);
}

/** @param {string} id @param {AbortSignal} signal */
async function fetched(id, signal) {
  const path = `/v1/runs/${encodeURIComponent(id)}`;
  const [view, lines] = await Promise.all([get(path, null, { signal }),
    text(`${path}/records`, { signal })]);
  const recording = new Recording();
  for (const line of lines.split("\n")) if (line) recording.add(JSON.parse(line));
  return { view, run: recording.model };
}

/** @param {{view: Api.RunView, run: RunModel}[]} found @param {AbortSignal} signal */
function timelines(found, signal) {
  const total = Math.max(...found.map(({ run }) => (run.last ?? 0) - (run.began ?? 0)));
  const rows = found.map(({ view, run }, place) => {
    const timeline = new Timeline({ label: `Timeline of ${"AB"[place]}`,
      onSelect: (one) => timeline.select(one), onLook: () => alike(timeline, rows) });
    timeline.element.addEventListener("scroll", () => alike(timeline, rows), { passive: true });
    timeline.set(run, { now: run.last ?? 0, total });
    onAbort(signal, () => timeline.close());
    return { view, run, timeline };
  });
  const first = rows[0].timeline;
  return [h("div", { class: "row between" },
    h("p", { class: "soft" }, "Both use the same time scale."),
    h("div", { class: "row" },
      button("−", () => first.zoom(1 / 1.6), { label: "Zoom out" }),
      button("+", () => first.zoom(1.6), { label: "Zoom in" }),
      button("Fit", () => first.fit()))), rows.map(part)];
}

/**
 * Give the other timelines the same scale and position.
 * @param {Timeline} moved @param {Compared[]} rows
 */
function alike(moved, rows) {
  for (const { timeline } of rows) {
    if (timeline === moved) continue;
    timeline.scale = moved.scale;
    timeline.following = moved.following;
    timeline.resize();
    if (timeline.element.scrollLeft !== moved.element.scrollLeft) {
      timeline.moveTo(moved.element.scrollLeft);
    } else timeline.redraw();
  }
}

/** @param {Compared} options @param {number} place */
function part({ view, run, timeline }, place) {
  const name = "AB"[place];
  const figures = [`${run.turns.length} turns`, `${run.ran} calls`,
    `${count(run.tokensIn)} / ${count(run.tokensOut)} tokens`, money(run.price),
    duration((run.last ?? 0) - (run.began ?? 0))].join(" · ");
  return h("section", { class: "card tl-card", "aria-label": `Run ${name}` },
    h("div", { class: "row" }, h("strong", { class: "compare-name" }, name), runBadge(view),
      h("a", { href: `#/runs/${encodeURIComponent(view.run_id)}` },
        oneLine(view.asked || view.run_id, 100)), h("span", { class: "soft small" }, view.agent,
        " · ", when(view.began_at))),
    h("p", { class: "small" }, figures), timeline.element);
}

/** @param {Api.RunComparison} options */
function differences({ same, differences: found }) {
  if (same) {
    return [h("h2", null, "Differences"), empty("No differences: turns, calls, results and tokens "
      + "are the same. Ids and times are ignored.")];
  }
  const turns = new Map();
  for (const one of found) turns.set(one.turn, [...(turns.get(one.turn) || []), one]);
  return [h("div", { class: "row" }, h("h2", null, "Differences"),
    badge("warn", String(found.length))),
  [...turns].map(([turn, all]) => h("section", { class: "compare-turn" },
    h("h3", null, turn ? `Turn ${turn}` : "The whole run"), all.map(difference)))];
}

/** @param {Api.Difference} options */
function difference({ what, a, b }) {
  const [left, right] = changed(a, b);
  return h("div", { class: "difference" }, h("h4", null, what),
    h("div", { class: "sides" }, side("A", left), side("B", right)));
}

/** @param {string} name @param {string[][]} pieces */
function side(name, pieces) {
  return h("div", { class: "side" }, h("span", { class: "compare-name" }, name),
    h("pre", { class: "text", tabindex: "0", role: "region", "aria-label": `in ${name}` },
      pieces.map(([kind, value]) => (kind === "changed"
        ? h("mark", null, value) : h("span", { class: "soft" }, value)))));
}
