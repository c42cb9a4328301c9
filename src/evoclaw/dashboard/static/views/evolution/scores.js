// @ts-check
// The scores of evaluations over time, each with its interval.

import { h, s } from "../../dom.js";
import { percent } from "../../format.js";
import { genomeName, isTrial, scoreText } from "./facts.js";

const NARROW = matchMedia("(max-width: 720px)").matches;
const WIDTH = NARROW ? 340 : 640, HEIGHT = 200, LEFT = 48, RIGHT = 10, TOP = 10, BOTTOM = 26;
const MAX_POINTS = NARROW ? 15 : 40;
const MAX_LABELS = NARROW ? 5 : 12;

/** @param {number} share */
const y = (share) => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);

/**
 * The share of passed runs with its 95 % interval, one mark for each evaluation.
 * @param {Api.EvaluationResult[]} results the oldest first
 */
export function scorePlot(results) {
  const shown = results.slice(-MAX_POINTS);
  const step = (WIDTH - LEFT - RIGHT) / shown.length;
  const every = Math.ceil(shown.length / MAX_LABELS);
  /** @param {number} index */
  const x = (index) => LEFT + step * (index + 0.5);
  const last = shown[shown.length - 1];
  const label = `Scores of the last ${shown.length} evaluations; the newest: ${genomeName(last)}, `
    + `${scoreText(last)}. All are in the table of results.`;
  return h("figure", { class: "plotted" },
    h("figcaption", null, "Passed runs, with 95 % intervals"),
    s("svg", { class: "plot scores", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
      "aria-label": label }, [0, 0.5, 1].map(grid),
    shown.map((result, index) => mark(result, x(index), index % every === 0))),
    h("ul", { class: "legend score-legend" }, h("li", { class: "is-version" }, "version"),
      h("li", { class: "is-candidate" }, "candidate"),
      h("li", { class: "is-tried" }, "tried by a proposer, on train cases")));
}

/** @param {number} share */
const grid = (share) => s("g", { class: "grid" },
  s("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(share), y2: y(share) }),
  s("text", { x: LEFT - 6, y: y(share) + 4, "text-anchor": "end" }, percent(share)));

/** @param {Api.EvaluationResult} result @param {number} x @param {boolean} labelled */
function mark(result, x, labelled) {
  const { rate, low, high } = result.total, isVersion = result.version !== null;
  const isTried = isTrial(result);
  const name = isVersion ? `v${result.version}` : isTried ? "" : `c${result.candidate}`;
  const middle = y(rate);
  const kind = isVersion ? "is-version" : isTried ? "is-tried" : "is-candidate";
  return s("g", { class: `score ${kind}` },
    s("title", null, `${genomeName(result)}: ${scoreText(result)}`),
    s("line", { x1: x, x2: x, y1: y(low), y2: y(high) }),
    s("line", { x1: x - 4, x2: x + 4, y1: y(low), y2: y(low) }),
    s("line", { x1: x - 4, x2: x + 4, y1: y(high), y2: y(high) }),
    isVersion ? s("circle", { cx: x, cy: middle, r: 4 })
      : s("rect", { x: x - 4, y: middle - 4, width: 8, height: 8 }),
    labelled && s("text", { class: "tick", x, y: HEIGHT - 8, "text-anchor": "middle" }, name));
}
