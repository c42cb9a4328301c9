// @ts-check
// The time scale: ticks, and the grouping of bars that are too small to show separately.

const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120,
  300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
const MAX_STEP = STEPS[STEPS.length - 1];
const TICK = 84; // pixels between two ticks, at least
const MIN_BAR = 5; // pixels; a smaller bar is grouped with its neighbours
const MAX_GROUP = 14; // pixels of a group at most, to keep the shape of the run

/**
 * The times of the ticks between `from` and `to` (seconds), by pixels per second.
 * @param {number} from @param {number} to @param {number} scale
 */
export function ticks(from, to, scale) {
  const step = STEPS.find((one) => one * scale >= TICK) || MAX_STEP;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to && found.length < 100; at += step) {
    found.push(Math.round(at * 1000) / 1000);
  }
  return { step, found };
}

/**
 * The label of a tick.
 * @param {number} at @param {number} step
 */
export function tickLabel(at, step) {
  if (step < 1) return `${at.toFixed(step < 0.01 ? 3 : step < 0.1 ? 2 : 1)} s`;
  if (at < 60 || step < 15) {
    const minutes = Math.floor(at / 60);
    return minutes ? `${minutes}:${String(Math.round(at % 60)).padStart(2, "0")}` : `${at} s`;
  }
  const hours = Math.floor(at / 3600), minutes = Math.floor((at % 3600) / 60);
  const seconds = String(Math.round(at % 60)).padStart(2, "0");
  return hours ? `${hours} h ${minutes} min` : `${minutes}:${seconds}`;
}

/**
 * Seconds since something began, short and even: 7.25, 19:20.1, 2:05:09.
 * @param {number} seconds
 */
export function clock(seconds) {
  if (seconds < 60) return seconds.toFixed(2);
  const whole = Math.floor(seconds);
  const two = (/** @type {number} */ value) => String(value).padStart(2, "0");
  if (whole < 3600) {
    return `${Math.floor(whole / 60)}:${two(whole % 60)}.${Math.floor((seconds % 1) * 10)}`;
  }
  return `${Math.floor(whole / 3600)}:${two(Math.floor((whole % 3600) / 60))}:${two(whole % 60)}`;
}

/**
 * Group boxes that are too small to show separately with their neighbours of the same row.
 * @param {Box[]} boxes by their left edge
 * @returns {GatheredBox[]}
 */
export function gathered(boxes) {
  /** @type {GatheredBox[]} */
  const found = [];
  /** @type {Map<Box["row"], GatheredBox>} */
  const open = new Map();
  for (const box of boxes) {
    const before = open.get(box.row);
    const small = box.right - box.left < MIN_BAR;
    if (small && before?.small && box.left < before.right + 2
      && box.right - before.left <= MAX_GROUP) {
      before.many.push(box);
      before.right = Math.max(before.right, box.right, before.left + MIN_BAR);
      continue;
    }
    const made = { ...box, right: Math.max(box.right, box.left + MIN_BAR), small, many: [box] };
    open.set(box.row, made);
    found.push(made);
  }
  return found;
}
