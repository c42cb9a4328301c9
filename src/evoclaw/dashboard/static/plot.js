// @ts-check
// SVG plots, each with the same numbers as a table for screen readers.

import { h, s } from "./dom.js";
import { moment } from "./format.js";
import { fold, table } from "./components.js";

/**
 * @typedef {{name: string, points: {at: number, value: number|null}[]}} Series Null is a gap.
 * @typedef {(value: number) => string} Format
 */

const NARROW = matchMedia("(max-width: 720px)").matches;
const WIDTH = NARROW ? 340 : 600, LEFT = 56, BOTTOM = 22, TOP = 8, RIGHT = 8;
const TWO_DAYS = 2 * 86_400; // seconds

/**
 * A small line without axes; `label` says what it shows.
 * @param {number[]} values @param {string} label
 */
export function sparkline(values, label, width = 96, height = 22) {
  const highest = Math.max(1, ...values);
  const step = values.length > 1 ? width / (values.length - 1) : 0;
  const points = values.map((value, index) =>
    `${(index * step).toFixed(1)},${(height - 2 - (value / highest) * (height - 4)).toFixed(1)}`);
  return s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": label, preserveAspectRatio: "none" },
  s("polyline", { points: points.join(" "), fill: "none", "vector-effect": "non-scaling-stroke" }));
}

/**
 * Lines over time.
 * @param {{title: string, series: Series[], format?: Format, height?: number}} options
 */
export function linePlot({ title, series, format = String, height = 180 }) {
  const all = series.flatMap((one) => one.points);
  const times = all.map((point) => point.at);
  const known = all.flatMap((point) => (point.value === null ? [] : [point.value]));
  if (!known.length) {
    return plotFigure(title, h("p", { class: "empty" }, "no data yet"), [], format);
  }
  const from = Math.min(...times), to = Math.max(...times, from + 1);
  const top = niceTop(Math.max(...known));
  /** @param {number} at */
  const x = (at) => LEFT + ((at - from) / (to - from)) * (WIDTH - LEFT - RIGHT);
  /** @param {number} value */
  const y = (value) => TOP + (1 - value / top) * (height - TOP - BOTTOM);
  const drawn = s("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${height}`, role: "img",
    "aria-label": `${title}; also available as a table below` },
  grid(top, y, height, format), timeAxis(from, to, x, height),
  series.map((one, index) => line(one, index, x, y)));
  return plotFigure(title, drawn, series, format);
}

/**
 * @param {Series} options @param {number} index @param {(at: number) => number} x
 * @param {(value: number) => number} y
 */
function line({ name, points }, index, x, y) {
  /** @type {[number, number][][]} */
  const pieces = [];
  /** @type {[number, number][]} */
  let piece = [];
  for (const { at, value } of points) {
    if (value === null) { pieces.push(piece); piece = []; } else piece.push([x(at), y(value)]);
  }
  pieces.push(piece);
  return s("g", { class: `line series-${index % 6}` }, s("title", null, name),
    pieces.filter((one) => one.length).map((one) => (one.length === 1
      ? s("circle", { cx: one[0][0], cy: one[0][1], r: 3.5 })
      : s("polyline", { points: one.map((p) => p.map((n) => n.toFixed(1)).join(",")).join(" "),
        fill: "none" }))));
}

/**
 * @param {number} top @param {(value: number) => number} y @param {number} height
 * @param {(value: number) => string} format
 */
function grid(top, y, height, format) {
  return [0, 0.5, 1].map((share) => s("g", { class: "grid" },
    s("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(share * top), y2: y(share * top) }),
    s("text", { x: LEFT - 6, y: y(share * top) + 4, "text-anchor": "end" }, format(share * top))));
}

/**
 * @param {number} from @param {number} to @param {(at: number) => number} x @param {number} height
 */
function timeAxis(from, to, x, height) {
  return [from, (from + to) / 2, to].map((at, index) => s("text", { class: "tick", x: x(at),
    y: height - 6, "text-anchor": ["start", "middle", "end"][index] }, tickText(at, to - from)));
}

/** A time on an axis: with its date only if the axis is longer than that.
 * @param {number} at @param {number} span */
function tickText(at, span) {
  const date = new Date(at * 1000);
  return span > TWO_DAYS ? date.toLocaleDateString([], { month: "short", day: "numeric" })
    : date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
}

/** @param {number} value */
function niceTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= value * 0.999) || value;
}

/**
 * @param {string} title @param {Element} drawn @param {Series[]} series
 * @param {(value: number) => string} format
 */
function plotFigure(title, drawn, series, format) {
  const legend = series.length > 1 && h("ul", { class: "legend" },
    series.map((one, index) => h("li", { class: `series-${index % 6}` }, one.name)));
  const rows = series.flatMap((one) => one.points.flatMap(({ at, value }) =>
    (value === null ? [] : [{ name: one.name, at, value }])));
  return h("figure", { class: "plotted" }, h("figcaption", null, title), drawn, legend,
    rows.length > 0 && fold("Show as a table", () => table(title, [
      { title: "When", cell: (row) => moment(row.at) }, { title: "What", cell: (row) => row.name },
      { title: "Value", number: true, cell: (row) => format(row.value) }], rows.slice(-200))));
}

/**
 * Bars beside each other's names; `items`: [{name, value, tone?}].
 * @param {{title: string, items: {name: string, value: number, tone?: string}[],
 *   format?: Format}} options
 */
export function bars({ title, items, format = String }) {
  const highest = Math.max(...items.map((item) => item.value), 0) || 1;
  return h("figure", { class: "plotted" }, h("figcaption", null, title),
    items.length === 0 ? h("p", { class: "empty" }, "no data yet")
      : h("ul", { class: "bars" }, items.map((item) => h("li", null,
        h("span", { class: "bar-name" }, item.name),
        h("span", { class: "bar-track", "aria-hidden": "true" },
          h("span", { class: `bar ${item.tone || ""}`,
            style: { width: `${(100 * item.value) / highest}%` } })),
        h("span", { class: "bar-value" }, format(item.value))))));
}
