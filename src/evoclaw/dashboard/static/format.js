// @ts-check
// Numbers and times as people read them.

/**
 * Seconds as a short duration.
 * @param {number|null|undefined} seconds
 */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return "–";
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) {
    return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  }
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/**
 * Milliseconds as a short duration.
 * @param {number|null} value
 */
export const millis = (value) => duration(value === null ? null : value / 1000);

/**
 * How long ago a moment was.
 * @param {number|null|undefined} unix
 */
export function ago(unix) {
  if (!unix) return "never";
  const elapsed = Math.max(0, Date.now() / 1000 - unix);
  if (elapsed < 5) return "just now";
  if (elapsed < 60) return `${Math.floor(elapsed)} s ago`;
  if (elapsed < 3600) return `${Math.floor(elapsed / 60)} min ago`;
  if (elapsed < 86400) return `${Math.floor(elapsed / 3600)} h ago`;
  return `${Math.floor(elapsed / 86400)} d ago`;
}

/**
 * A Unix time: only the time if it is today, else date and time.
 * @param {number|null|undefined} unix
 */
export function moment(unix) {
  if (!unix) return "–";
  const date = new Date(unix * 1000);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit",
    second: "2-digit" });
  const today = date.toDateString() === new Date().toDateString();
  return today ? time : `${date.toLocaleDateString()} ${time}`;
}

/**
 * US dollars; null is an unknown price.
 * @param {number|null|undefined} value
 */
export function money(value) {
  if (value === null || value === undefined) return "unknown";
  if (value === 0) return "$0";
  if (value < 0.01) return `$${value.toFixed(5)}`;
  return `$${value.toFixed(value < 1 ? 4 : 2)}`;
}

/**
 * A count, shortened when it is large.
 * @param {number|null|undefined} value
 */
export function count(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) < 10_000) return String(Math.round(value * 100) / 100);
  if (Math.abs(value) < 1_000_000) return `${(value / 1000).toFixed(1)} k`;
  return `${(value / 1_000_000).toFixed(1)} M`;
}

/**
 * Bytes.
 * @param {number} value
 */
export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/**
 * A share of one.
 * @param {number|null|undefined} value
 */
export function percent(value) {
  if (value === null || value === undefined) return "–";
  return `${(value * 100).toFixed(value > 0.9995 ? 0 : 1)} %`;
}

/**
 * "1 call", "2 calls".
 * @param {number} number
 * @param {string} one
 */
export const some = (number, one, many = `${one}s`) =>
  `${count(number)} ${number === 1 ? one : many}`;
