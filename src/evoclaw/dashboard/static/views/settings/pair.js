// @ts-check
// Pair a device: an invitation as a QR code, a command and a link.

import { post } from "../../api.js";
import { h, replace, s, setText, ticking } from "../../dom.js";
import { duration, some } from "../../format.js";
import { fleet, may, on } from "../../live.js";
import { badge, busy, button, copyButton, field, missingScope, select, toast }
  from "../../components.js";
import { approveTools, mayApprove } from "../fleet/card.js";

const QUIET = 4; // the width of the quiet zone, in modules
const NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;
const TIMES = [["15", "15 minutes"], ["60", "1 hour"], ["1440", "1 day"], ["10080", "7 days"]];

/**
 * Show the form for an invitation.
 * @param {HTMLElement} place @param {AbortSignal} signal
 */
export function showPair(place, signal) {
  if (!may("fleet:write")) {
    return replace(place, missingScope("invite devices", "fleet:write"));
  }
  const name = h("input", { required: true, maxlength: "64", autocomplete: "off",
    placeholder: "kitchen-pi" });
  const minutes = select(TIMES, "15");
  const invited = h("div");
  const go = h("button", { class: "primary" }, "Invite");
  /** @type {AbortController|null} */
  let current = null; // aborted when another invitation replaces it
  const form = h("form", { class: "card settings-make" }, h("h2", null, "Pair a device"),
    h("p", { class: "soft" }, "EvoClaw must be installed on the device. The invitation works once, "
      + "and only for this name."),
    h("div", { class: "settings-form" },
      field("Name of the device", name, "Letters, digits, - and _"),
      field("The invitation is valid for", minutes)),
    h("div", { class: "row" }, go));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const id = name.value.trim();
    if (!NAME.test(id)) {
      name.focus();
      return toast("Use letters, digits, - and _; start with a letter or digit.", "bad");
    }
    return busy(go, async () => {
      const number = Number(minutes.value);
      const made = await post("/v1/fleet/invitations", { agent_id: id, minutes: number });
      current?.abort();
      current = new AbortController();
      const either = AbortSignal.any([signal, current.signal]);
      replace(invited, invitation(id, made, Date.now() / 1000 + number * 60, either));
      invited.querySelector("h2")?.focus();
    });
  });
  return replace(place, form, invited);
}

/**
 * An invitation: a QR code, a command and a link, and whether the device is online.
 * @param {string} id @param {Api.EdgeInvitation} made @param {number} until
 * @param {AbortSignal} signal
 */
export function invitation(id, made, until, signal) {
  const command = made.command || `evoclaw edge join ${made.url} --token ${made.token}`;
  const left = h("span", { class: "invite-left" });
  const state = h("div", { class: "invite-state", role: "status" });
  const code = made.qr?.length ? qrCode(made.qr, `invitation for ${id} as a QR code`) : null;
  watch(id, until, { left, state, code }, signal);
  return h("section", { class: "card invite" },
    h("div", { class: "row between" }, h("h2", { tabindex: "-1" }, `Invitation for ${id}`), left),
    state,
    made.warning && h("p", null, badge("warn", "only on this machine"), " ", made.warning),
    h("div", { class: "invite-ways" },
      code ? h("div", { class: "invite-code" }, code,
        h("p", { class: "soft small" }, "Scan this code on the device."))
        : h("p", { class: "soft small" }, "This orchestrator provides no QR code."),
      h("div", { class: "invite-words" },
        h("h3", null, code ? "Or run this on the device" : "Run this on the device"),
        copied(command, "the command"),
        made.link && [h("h3", null, "Or use the link"), copied(made.link, "the link")],
        h("h3", null, "Then start the edge there"),
        copied("evoclaw edge --config agent.toml", "the start command"),
        h("p", { class: "soft small" }, "Anyone who has the invitation can join once as this "
          + "device until it expires. Do not share it."))));
}

/** @param {string} text @param {string} what */
function copied(text, what) {
  return h("div", { class: "copied" }, h("code", { tabindex: "0", "aria-label": what }, text),
    copyButton(text));
}

/**
 * Update the time left, and show when the device is online and its tools wait.
 * @param {string} id @param {number} until
 * @param {{left: HTMLElement, state: HTMLElement, code: Element|null}} options
 * @param {AbortSignal} signal
 */
function watch(id, until, { left, state, code }, signal) {
  const began = Date.now() / 1000;
  let stage = "";
  const draw = () => {
    const edge = fleet.get(id);
    const here = edge && edge.online && (edge.last_seen || 0) > began;
    const over = until - Date.now() / 1000;
    setText(left, here ? "" : over > 0 ? `valid for ${duration(over)}` : "");
    code?.classList.toggle("over", !here && over <= 0);
    const waiting = here ? (edge.waiting || []).length : 0;
    const next = here ? `here ${waiting}` : over > 0 ? "waits" : "over";
    if (next === stage) return;
    stage = next;
    replace(state, here ? arrived(edge, waiting) : over > 0
      ? badge("busy", `Waiting for ${id} to come online…`)
      : badge("bad", "The invitation has expired. Create another."));
  };
  on("fleet", draw, signal);
  ticking(draw, signal);
  draw();
}

/** @param {Api.EdgeView} edge @param {number} waiting */
function arrived(edge, waiting) {
  return h("div", { class: "row" }, badge("good", `${edge.agent_id} is online`),
    waiting > 0 && badge("warn", `${some(waiting, "tool waits", "tools wait")} for approval`),
    waiting > 0 && mayApprove() && button("Approve tools…",
      () => approveTools(fleet.get(edge.agent_id)), { tone: "primary" }),
    waiting > 0 && !mayApprove() && h("span", { class: "soft small" },
      "Only a person may approve them: your token needs the scopes 'fleet:write' and 'human'."),
    waiting === 0 && h("span", { class: "soft" }, "Its tools are available."),
    h("a", { href: `#/fleet/${encodeURIComponent(edge.agent_id)}` }, "Show the edge"));
}

/**
 * A QR code as SVG: dark on light in every theme, with its quiet zone.
 * @param {string[]} rows @param {string} label
 */
export function qrCode(rows, label) {
  const margin = Math.max(0, QUIET - lightAround(rows));
  const size = rows.length + 2 * margin;
  const path = rows.flatMap((row, y) => [...row.matchAll(/1+/g)].map((run) =>
    `M${run.index + margin} ${y + margin}h${run[0].length}v1h-${run[0].length}z`)).join("");
  return s("svg", { class: "qr", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": label,
    "shape-rendering": "crispEdges" },
  s("rect", { class: "qr-light", width: size, height: size }),
  s("path", { class: "qr-dark", d: path }));
}

/**
 * The width of the quiet zone that the rows already have.
 * @param {string[]} rows
 */
function lightAround(rows) {
  const first = rows.findIndex((row) => row.includes("1"));
  const left = Math.min(...rows.filter((row) => row.includes("1")).map((row) => row.indexOf("1")));
  return Math.min(first, left);
}
