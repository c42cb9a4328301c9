// @ts-check
// The card of one waiting call: its arguments, the reason, and what an approval covers.

import { h, replace, setText } from "../../dom.js";
import { duration } from "../../format.js";
import { may } from "../../live.js";
import { badge, button } from "../../components.js";

const LINES = 14, LETTERS = 900; // of one argument that are shown before it is truncated
const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu;
const CUT = /\[… (\d+) characters not shown …\]/g;
/** @param {string} letter */
const code = (letter) =>
  `⟨U+${(letter.codePointAt(0) || 0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

/**
 * A text with invisible and reordering characters written out.
 * @param {unknown} text
 */
export function visible(text) {
  return String(text).replace(HIDDEN, (c) => (c === "\n" || c === "\t" ? c : code(c)));
}

/**
 * One argument, with notes about truncated or removed parts.
 * @param {string} name @param {unknown} value
 */
function argument(name, value) {
  const raw = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const text = visible(raw), lines = text.split("\n");
  const left = [...raw.matchAll(CUT)].reduce((total, found) => total + Number(found[1]), 0);
  const block = h("pre", { class: "text", tabindex: "0", role: "group",
    "aria-label": `argument ${name}` });
  const notes = h("div", { class: "row small" });
  const short = lines.slice(0, LINES).join("\n").slice(0, LETTERS);
  replace(block, text === "" ? h("span", { class: "soft" }, "(empty)") : short);
  if (short.length < text.length) {
    const rest = (text.length - short.length).toLocaleString();
    const all = button(`Show the other ${rest} of ${text.length.toLocaleString()} characters`,
      () => { replace(block, text); all.remove(); folded.remove(); block.focus(); });
    const folded = badge("warn", "truncated: not all of it is shown");
    block.append("…");
    notes.append(folded, all);
  }
  if (left) {
    notes.append(badge("warn", `${left.toLocaleString()} characters were removed before this `
      + "was stored; the sha256 covers them too"));
  }
  if (text !== raw) notes.append(badge("warn", "hidden characters are written out as ⟨U+…⟩"));
  return [h("dt", null, h("code", null, visible(name))), h("dd", null, block, notes)];
}

/**
 * The arguments of a call.
 * @param {Api.JsonObject<any>|null} [values]
 */
export function argumentList(values) {
  const pairs = Object.entries(values || {});
  if (!pairs.length) return h("p", { class: "soft" }, "No arguments.");
  return h("dl", { class: "arguments" }, pairs.map(([name, value]) => argument(name, value)));
}

/**
 * When an approval expires.
 * @param {number} unix
 */
export function expiry(unix) {
  const left = unix - Date.now() / 1000;
  return left > 0 ? `expires in ${duration(left)}` : "expired";
}

/**
 * Link to a run.
 * @param {string} id
 */
export const runLink = (id) =>
  h("a", { href: `#/runs/${encodeURIComponent(id)}`, title: id }, `run ${id.slice(0, 8)}`);

/** The card of one call. */
export class ApprovalCard {
  /**
   * @param {Api.ApprovalView} item
   * @param {{human: boolean, group: import("./group.js").Group,
   *   answer: (decision: string) => unknown, select: (checked: boolean) => void}} options
   *   `human`: whether the user may answer
   */
  constructor(item, { human, group, answer, select }) {
    this.item = item;
    this.group = group;
    this.over = false;
    this.left = h("span", { class: "small soft approval-left" });
    this.done = h("p", { class: "approval-done", role: "status", hidden: true });
    const check = h("input", { type: "checkbox", "aria-label": `Select ${item.tool}`,
      on: { change: () => select(check.checked) } });
    this.check = human ? check : null;
    this.buttons = human ? h("footer", { class: "row" },
      button("Approve once", () => answer("once"), { tone: "primary" }),
      button("For the session", () => answer("session")),
      item.covers_step && may("admin")
        && button("This step from now on", () => answer("step")),
      button("Deny…", () => answer("deny"), { tone: "danger" })) : null;
    this.element = h("article", { class: "card approval", tabindex: "-1", data: { id: item.id },
      "aria-label": `${item.tool} requested by ${item.agent}` }, this.head(), this.body(),
    this.done, this.buttons);
    this.tick();
  }

  head() {
    const { item } = this;
    return h("header", { class: "row between" },
      h("span", { class: "row" }, this.check,
        h("h3", null, h("code", null, item.tool), item.machine && ` on ${item.machine}`),
        h("span", { class: "soft small" }, "requested by ", h("strong", null, item.agent || "?"),
          item.user && [" for ", h("strong", null, item.user)], " in ", runLink(item.run_id))),
      this.left);
  }

  body() {
    const { item } = this;
    return [argumentList(item.arguments),
      h("dl", { class: "facts small" },
        h("dt", null, "reason"),
        h("dd", null, item.reason || "no reason was given", " ",
          h("code", { class: "soft" }, item.code)),
        h("dt", null, "for the session"), h("dd", null, `would cover ${visible(item.covers)}`),
        item.covers_step && [h("dt", null, "this step"),
          h("dd", null, `would cover ${visible(item.covers_step)}`)],
        h("dt", null, "sha256"),
        h("dd", null, h("code", { title: item.sha256 }, item.sha256.slice(0, 12)), "… ",
          h("span", { class: "soft" }, "of the full arguments: “once” approves only these")))];
  }

  /** Update the time that is left. */
  tick() {
    setText(this.left, expiry(this.item.expires_at));
  }

  /**
   * Mark it as answered, until the orchestrator no longer lists it.
   * @param {string} text
   */
  answered(text) {
    this.over = true;
    this.element.classList.add("over");
    if (this.check) Object.assign(this.check, { checked: false, disabled: true });
    if (this.buttons) this.buttons.hidden = true;
    this.done.hidden = false;
    setText(this.done, text);
  }

  /** Whether it can still be answered. */
  get open() {
    return !this.over && this.item.expires_at > Date.now() / 1000;
  }
}
