// @ts-check
// The card of one waiting call: what it would do, where and why, and what an approval covers.

import { h, setText } from "../../dom.js";
import { duration } from "../../format.js";
import { may } from "../../live.js";
import { button } from "../../components.js";
import { visible } from "./arguments.js";
import { headline, subject } from "./subject.js";

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

/**
 * Why a call is asked for, and exactly what each approval would cover.
 * @param {Api.ApprovalView} item
 * @returns {Child}
 */
export function scopeFacts(item) {
  return [h("dt", null, "why"),
    h("dd", null, visible(item.reason || "no reason given"), " ",
      h("code", { class: "soft" }, item.code)),
    h("dt", null, "always covers"), h("dd", null, visible(item.covers || "only this call")),
    item.covers_step && [h("dt", null, "this step covers"),
      h("dd", null, visible(item.covers_step))]];
}

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
    const name = `${visible(item.tool)}${item.machine ? ` on ${visible(item.machine)}` : ""}`;
    this.buttons = human ? h("footer", { class: "row" },
      button("Approve once", () => answer("once"),
        { tone: "primary", label: `Approve once: ${name}` }),
      button("Always", () => answer("session"),
        { title: `Covers ${visible(item.covers)}`, label: `Always: ${name}` }),
      item.covers_step && may("admin")
        && button("Always for this step", () => answer("step")),
      button("Deny…", () => answer("deny"), { tone: "danger", label: `Deny ${name}…` })) : null;
    this.element = h("article", { class: "card approval", tabindex: "-1", data: { id: item.id },
      "aria-label": `${item.tool} requested by ${item.agent}` }, this.head(), this.body(),
    this.done, this.buttons);
    this.tick();
  }

  head() {
    const { item } = this;
    return h("header", { class: "row between" },
      h("span", { class: "row" }, this.check,
        h("h3", null, headline(item)),
        h("span", { class: "soft small" }, "requested by ", h("strong", null, item.agent || "?"),
          item.user && [" for ", h("strong", null, item.user)], " in ", runLink(item.run_id))),
      this.left);
  }

  body() {
    const { item } = this;
    return [subject(item), h("dl", { class: "facts small" }, scopeFacts(item),
      h("dt", null, "SHA-256"),
      h("dd", null, h("code", { title: item.sha256 }, item.sha256.slice(0, 12)), "… ",
        h("span", { class: "soft" }, "of the full arguments; “Approve once” covers only these")))];
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
