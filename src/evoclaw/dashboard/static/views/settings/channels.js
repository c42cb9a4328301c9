// @ts-check
// Channels: whether each one is connected, its last messages, its problems, and who may use it.

import { get, post, postEmpty } from "../../api.js";
import { h, lookup, oneLine, replace } from "../../dom.js";
import { duration, some } from "../../format.js";
import { may } from "../../live.js";
import { badge, button, copyButton, dialog, empty, facts, missingScope, table, toast, when }
  from "../../components.js";
import { refreshing } from "../../refresh.js";

/** @type {{[kind: string]: string|undefined}} */
const KINDS = lookup({ telegram: "Telegram", slack: "Slack", discord: "Discord", matrix: "Matrix",
  email: "E-mail", webhook: "Webhook", mqtt: "MQTT" });
/** @type {{[state: string]: Tone|undefined}} */
const TONES = lookup({ connected: "good", standby: "good", listening: "good",
  connecting: "busy", failed: "bad" });
const PAIRED_KINDS = ["telegram", "slack", "discord", "matrix", "email"];

/**
 * Show the channels and the answers that could not be delivered, up to date until aborted.
 * @param {HTMLElement} place @param {AbortSignal} signal
 */
export function showChannels(place, signal) {
  if (!may("admin")) return replace(place, missingScope("see channels", "admin"));
  const list = h("div", { class: "settings-body" });
  replace(place, h("p", { class: "soft" }, "People write to agents through channels. EvoClaw "
    + "notifies people through ", h("a", { href: "#/settings/notifications" }, "notifiers"), "."),
  list);
  return refreshing(list, () => Promise.all([get("/v1/channels", null, { signal }),
    get("/v1/deliveries/given-up", null, { signal })]), shown, signal);
}

/** @param {[Api.ChannelList, Api.FailedDeliveryList]} found */
function shown([{ items }, failed]) {
  const sending = new Set(items.filter((one) => one.sends_answers).map((one) => one.name));
  return [channelList(items), failedList(failed.items.filter((one) => sending.has(one.channel)))];
}

/** @param {Api.ChannelView[]} items */
function channelList(items) {
  return items.length ? h("div", { class: "grid-cards" }, items.map(channelCard))
    : empty("No channels yet. Add a [[channels]] table to evoclaw.toml.",
      h("p", { class: "small" }, "Telegram, Slack, Discord, Matrix, e-mail, webhooks and MQTT are "
        + "supported."));
}

/** @param {Api.ChannelView} one */
function channelCard(one) {
  const senders = [...one.senders.map((name) => (name === "*" ? "everyone" : name)),
    ...Object.keys(one.paired)];
  return h("article", { class: "card channel", "aria-label": `channel ${one.name}` },
    h("div", { class: "row between" }, h("h2", null, one.name),
      badge(TONES[one.state] || "quiet", one.state)),
    facts([["Kind", KINDS[one.kind] || one.kind], ["Account", one.account],
      ["Since", when(one.changed_at)], ["Agent", one.agent || "default"],
      ["Senders", oneLine(senders.join(", "), 200) || "none"],
      ["Last received", when(one.last_received_at)],
      ["Last sent", one.sends_answers ? when(one.last_sent_at) : "never: no callback_url"],
      ["Undelivered", undelivered(one)],
      ["Refused", one.refused ? some(one.refused, "message") : ""]]),
    (one.problem || one.fix) && h("div", { class: "channel-problem", role: "status" },
      one.problem && h("p", null, h("strong", null, one.problem)),
      one.fix && h("p", null, ticked(one.fix))),
    !one.problem && one.last_problem && h("p", { class: "soft small" }, "Last problem: ",
      one.last_problem, " · ", when(one.last_problem_at)),
    PAIRED_KINDS.includes(one.kind) && h("div", { class: "row" }, button("Add a sender…",
      () => pair(one.name), { label: `Add a sender to ${one.name}` })));
}

/** @param {Api.ChannelView} one */
function undelivered({ retrying, given_up: dead }) {
  return [retrying && `${some(retrying, "answer")}, retrying`, dead && `${dead} given up`]
    .filter(Boolean).join("; ");
}

/** A text whose parts between backticks are commands. @param {string} text */
const ticked = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", null, part)
  : part));

/** @param {string} name */
async function pair(name) {
  const { code, valid_s: seconds } = await post(
    `/v1/channel-pairings/${encodeURIComponent(name)}`, {});
  const command = `/pair ${code}`;
  dialog(`Add a sender to ${name}`,
    h("p", null, "Send this message to the channel from the account that you want to add:"),
    h("div", { class: "copied" }, h("code", { tabindex: "0", "aria-label": "the message" },
      command), copyButton(command)),
    h("p", { class: "soft small" }, `The code works once, for ${duration(seconds)}. The first `
      + "account that sends it may use the channel."));
}

/** @param {Api.DeadLetter[]} items */
function failedList(items) {
  return items.length > 0 && [h("h2", null, "Undelivered answers"),
    table("undelivered answers, the newest first", FAILED, items)];
}

/** @type {Column<Api.DeadLetter>[]} */
const FAILED = [
  { title: "Created", cell: (one) => when(one.made_at) },
  { title: "Channel", cell: (one) => one.channel },
  { title: "To", cell: (one) => one.sender },
  { title: "Answer", main: true, cell: (one) => oneLine(one.answer.text || "–", 100) },
  { title: "Problem", wide: true, cell: (one) => one.problem },
  { title: "Attempts", number: true, cell: (one) => one.attempts },
  { title: "", cell: (one) => button("Retry", async () => {
    await postEmpty(`/v1/deliveries/${encodeURIComponent(one.id)}/revive`);
    toast("Retrying the delivery");
  }, { label: `Retry the answer to ${one.sender}` }) },
];
