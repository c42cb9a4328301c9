// @ts-check
// Chat: the session list, one conversation, and its canvas.

import { del, get, patch, post } from "../../api.js";
import { announce, h, inside, onAbort, oneLine, replace } from "../../dom.js";
import { may } from "../../live.js";
import { button, confirmed, dialog, empty, failed, field, select, toast }
  from "../../components.js";
import { maySetUp, showFirstSteps } from "../../first_steps.js";
import { Canvas } from "./canvas.js";
import { Composer, leaveDraft } from "./composer.js";
import { EdgeChooser } from "./edge.js";
import { SessionList } from "./sessions.js";
import { Conversation } from "./conversation.js";
import { costLine, loopMessageKind, textOf, titleOf } from "./messages.js";

export const title = "Chat";

const AGENT = "evoclaw.chat.agent";

/**
 * Show a session, or the form for a new one.
 * @param {HTMLElement} root @param {string[]} args @param {AbortSignal} signal
 */
export async function mount(root, args, signal) {
  const chat = new Chat(root, signal);
  chat.list.load().catch((cause) => toast(cause.message, "bad"));
  await chat.open(args[0] || "", { push: false });
}

/** The view: one session at a time, changed without leaving it. */
class Chat {
  /** @param {HTMLElement} root @param {AbortSignal} signal */
  constructor(root, signal) {
    this.signal = signal;
    /** @type {Api.SessionView|null} */
    this.session = null;
    /** @type {Composer|null} */
    this.composer = null;
    this.foot = h("p", { class: "foot soft small" });
    this.heading = h("h2");
    this.canvasButton = button("Canvas", () => this.toggleCanvas());
    this.canvasButton.id = "canvas-button";
    this.asksTitle = false;
    this.shown = new AbortController(); // aborted when another session is shown
    onAbort(signal, () => this.shown.abort());
    /** @type {Conversation|null} */
    this.conversation = null;
    /** @type {Canvas|null} */
    this.canvas = null;
    this.list = new SessionList((id) => this.open(id), signal);
    this.drawer = h("aside", { class: "drawer", id: "chat-sessions", "aria-label": "Sessions" },
      h("div", { class: "row between" }, h("h2", null, "Sessions"),
        button("New", () => this.open(""), { tone: "primary", label: "New session" })),
      this.list.element);
    this.place = h("div", { class: "place" });
    this.side = h("div", { class: "side" });
    replace(root, this.drawer, this.place, this.side);
    this.drawer.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.showDrawer(false);
    });
    this.place.addEventListener("pointerdown", (event) => {
      if (!inside(event, ".opener")) this.showDrawer(false);
      const here = inside(event, ".menu");
      for (const menu of this.place.querySelectorAll("details")) {
        if (menu.matches(".menu") && menu !== here) menu.open = false;
      }
    });
  }

  /** @param {boolean} wanted */
  showDrawer(wanted) {
    if (this.drawer.classList.contains("open") === wanted) return;
    this.drawer.classList.toggle("open", wanted);
    /** @type {HTMLElement|null} */
    const opener = this.place.querySelector(".opener");
    opener?.setAttribute("aria-expanded", String(wanted));
    if (wanted) this.drawer.querySelector("button")?.focus();
    else if (this.drawer.contains(document.activeElement)) opener?.focus();
  }

  opener() {
    const made = button("Sessions", () =>
      this.showDrawer(!this.drawer.classList.contains("open")), { tone: "opener" });
    made.setAttribute("aria-controls", "chat-sessions");
    made.setAttribute("aria-expanded", "false");
    return made;
  }

  /**
   * Show another session; an empty id shows the form for a new one.
   * @param {string} id @param {{push?: boolean, focus?: boolean}} [options]
   */
  async open(id, { push = true, focus = push } = {}) {
    this.shown.abort();
    this.shown = new AbortController();
    if (this.signal.aborted) this.shown.abort();
    this.showDrawer(false);
    this.conversation = this.canvas = this.session = null;
    replace(this.side);
    this.list.mark(id);
    if (push) history.pushState(null, "", id ? `#/chat/${encodeURIComponent(id)}` : "#/chat");
    const { signal } = this.shown;
    try {
      if (id) await this.showSession(id, signal);
      else await this.showNew(signal);
    } catch (cause) {
      if (signal.aborted || cause.name === "AbortError") return;
      const missing = cause.status === 404;
      replace(this.place, h("header", { class: "row talk-head" }, this.opener()),
        failed(missing ? new Error("Unknown session. It may have been deleted.") : cause,
          missing ? null : () => this.open(id, { push: false })));
      return;
    }
    if (focus && !signal.aborted) this.focusComposer();
  }

  reopen() { return this.open(this.opened.id, { push: false }); }

  /** The session that is shown. */
  get opened() {
    if (!this.session) throw new Error("No session is open.");
    return this.session;
  }

  focusComposer() { this.composer?.input.focus(); }

  /** @param {AbortSignal} signal */
  async showNew(signal) {
    const before = h("span", { class: "row" });
    const agents = h("span", { class: "row" });
    const choice = { agent: "", on: "" };
    const edge = new EdgeChooser("", (on) => { choice.on = on; }, signal);
    replace(before, agents, edge.element);
    /**
     * @param {string} message @param {string} key @param {string} _how
     * @param {Api.AttachedImage[]} images
     */
    const send = async (message, key, _how, images) => {
      const run = await post("/v1/runs", { message, ...choice, images }, { signal, key });
      composer.draft.done();
      await this.open(run.session_id);
      this.conversation?.onRuns([run]); // it may have ended already, and be part of the history
      this.list.soon();
    };
    const listed = get("/v1/agents", null, { signal });
    const composer = this.composer = new Composer("", { send, stop: () => {}, before });
    replace(this.place, h("header", { class: "row talk-head" }, this.opener(),
      h("h2", null, "New session")),
    this.welcome(signal, listed), composer.element);
    composer.fit();
    try {
      const { agents: found } = await listed;
      const names = found.map((one) => one.name);
      const last = sessionStorage.getItem(AGENT) || "";
      choice.agent = names.includes(last) ? last : names[0] || "";
      /** @param {string} name */
      const chosen = (name) => {
        choice.agent = name;
        sessionStorage.setItem(AGENT, name);
      };
      const texts = found.map((one) => [one.name, one.autonomy
        ? `${one.name} (${one.autonomy})` : one.name]);
      replace(agents, h("label", { class: "row small agent" }, "Agent",
        select(texts, choice.agent, chosen)));
    } catch (cause) {
      if (cause.name === "AbortError") return;
      replace(agents, h("span", { class: "soft small", role: "alert" },
        `The agents could not be loaded (${cause.message}). The default agent answers.`));
    }
  }

  /**
   * The text of an empty chat; the first steps until all of them are done.
   * @param {AbortSignal} signal @param {Promise<Api.AgentList>} agents
   */
  welcome(signal, agents) {
    const usual = () => empty("Describe what you want done. The agent shows every tool call, and "
      + "asks for your approval where a policy requires it.");
    const place = h("div", { class: "talk" }, usual());
    const whenDone = () => replace(place, usual());
    /** @param {string} message */
    const ask = (message) => this.composer?.put(message);
    if (maySetUp()) showFirstSteps(place, signal, { ask, whenDone, agents }).catch((cause) => {
      if (cause.name !== "AbortError") toast(cause.message, "bad");
    });
    return place;
  }

  /** @param {string} id @param {AbortSignal} signal */
  async showSession(id, signal) {
    const session = await get(`/v1/sessions/${encodeURIComponent(id)}`, null, { signal });
    if (signal.aborted) return;
    this.session = session;
    const conversation = this.conversation = new Conversation(session, this, signal);
    this.canvas = new Canvas(id, signal, (problem) => this.canvasShown(problem));
    const composer = this.composer = new Composer(id, { stop: () => conversation.stop(),
      send: (...message) => conversation.say(...message) });
    replace(this.foot);
    replace(this.heading, titleOf(session));
    this.canvasButton.hidden = true;
    const writes = may("sessions:write");
    const edge = new EdgeChooser(session.on || "", (on) => this.move(on), signal);
    replace(this.place,
      h("header", { class: "row talk-head" }, this.opener(), this.heading,
        h("span", { class: "soft small agent-name" }, session.agent), h("span", { class: "grow" }),
        writes && edge.element,
        this.canvasButton, writes && this.menu()),
      conversation.element, composer.element, this.foot);
    replace(this.side, this.canvas.element);
    composer.fit();
    await conversation.begin();
  }

  /** The menu of a session. */
  menu() {
    const made = h("details", { class: "menu" },
      h("summary", { "aria-label": "More about this session", title: "More" }, "⋯"),
      h("div", { class: "card" }, button("Rename", () => this.rename(), { tone: "plain" }),
        button("Delete", () => this.remove(), { tone: "plain" })));
    const close = () => { made.open = false; };
    made.addEventListener("click", (event) => { if (inside(event, "button")) close(); });
    made.addEventListener("focusout", ({ relatedTarget }) => {
      if (relatedTarget instanceof Node && !made.contains(relatedTarget)) close();
    });
    made.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !made.open) return;
      close();
      made.querySelector("summary")?.focus();
    });
    return made;
  }

  /**
   * A run started, continued or ended.
   * @param {Conversation} conversation
   */
  stateChanged(conversation) {
    if (conversation !== this.conversation || !this.composer) return;
    this.composer.show(conversation.current?.view.state || null);
    replace(this.foot, costLine(conversation.lastRun));
    if (!conversation.current && !this.opened.title) this.refreshTitle();
  }

  async refreshTitle() {
    if (this.asksTitle || !this.conversation?.live.length) return;
    this.asksTitle = true;
    try {
      const { signal } = this.shown;
      this.renamed(await get(`/v1/sessions/${this.opened.id}`, null, { signal }));
    } catch (cause) {
      if (cause.name !== "AbortError") announce("The title could not be loaded.");
    } finally {
      this.asksTitle = false;
    }
  }

  /** @param {Api.SessionView} session */
  renamed(session) {
    if (session.id !== this.session?.id) return;
    this.session = { ...this.opened, title: session.title };
    replace(this.heading, titleOf(session));
    this.list.put(session);
  }

  /**
   * Have the next runs of the session work on another edge.
   * @param {string} on
   */
  async move(on) {
    this.session = await patch(`/v1/sessions/${this.opened.id}`, { on });
    announce(`This session now works on ${on || "the default edge"}`);
  }

  rename() {
    const input = h("input", { type: "text", maxlength: "80", required: true,
      value: this.opened.title || "" });
    const form = h("form", null, field("Title", input),
      h("div", { class: "row end" }, h("button", { class: "primary" }, "Rename")));
    const shown = dialog("Rename the session", form);
    input.select();
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        this.renamed(await patch(`/v1/sessions/${this.opened.id}`, { title: input.value.trim() }));
        shown.close();
      } catch (cause) {
        toast(cause.message, "bad");
      }
    });
  }

  async remove() {
    const { id } = this.opened;
    const name = titleOf(this.opened);
    const sure = await confirmed("Delete this session?", `This permanently deletes “${name}” `
      + "with its messages and runs, and the sessions it started. The audit log stays.",
    { action: "Delete" });
    if (sure === null) return;
    await del(`/v1/sessions/${id}`);
    this.list.drop(id);
    toast("Deleted the session");
    history.replaceState(null, "", "#/chat"); // the session no longer exists
    await this.open("", { push: false, focus: true });
  }

  /**
   * Branch a session after a reply of the model, or before a message of the user.
   * @param {number|null} number @param {string} role @param {string} text
   */
  async branch(number, role, text) {
    const { id, agent, on = "", title: name } = this.opened;
    if (number === null) throw new Error("This message is not saved yet. Try again in a moment.");
    const path = `/v1/sessions/${id}/messages`;
    const start = Math.max(0, number - 1);
    const { items } = await get(path, { start, limit: number - start + 1 });
    const found = items.at(-1)?.message;
    const stored = found && (found.role === "user" ? textOf(found) : found.text);
    if (!found || found.role !== role || stored !== text) {
      throw new Error("The session has changed. Reload it, then try again.");
    }
    // The recalled notes of a message are stored before it, and belong to it.
    const remembered = items.length > 1 && loopMessageKind(items[0].message) === "memory";
    const last = role === "user" ? number - (remembered ? 2 : 1) : number;
    const named = oneLine(`branch of ${name || "a session"}`, 80);
    const made = last < 0 ? await post("/v1/sessions", { agent, on, title: named })
      : await post(`/v1/sessions/${id}/branch`, { at_message: last, title: named });
    if (role === "user") leaveDraft(made.id, text);
    this.list.put(made);
    announce("This is a new session, branched from the old one");
    await this.open(made.id);
  }

  /**
   * Send the same message again.
   * @param {string} asked
   */
  async again(asked) {
    this.composer?.put(asked);
    await this.composer?.submit(this.composer.mode);
  }

  /**
   * The canvas was changed: just now, or in the history.
   * @param {boolean} fresh
   */
  canvasChanged(fresh) { this.canvas?.load(fresh); }

  toggleCanvas() {
    if (this.canvas?.element.hidden) this.canvas.open();
    else this.canvas?.close();
  }

  /** @param {Error} [problem] */
  canvasShown(problem) {
    if (problem) toast(`The canvas could not be loaded: ${problem.message}`, "bad");
    const { sheet, element } = this.canvas || {};
    this.canvasButton.hidden = !sheet;
    this.canvasButton.setAttribute("aria-expanded", String(!element?.hidden));
  }
}
