// @ts-check
// The state of a run, folded from its records. No DOM: values in, values out.

/**
 * The status or outcome of a call, in one word.
 * @param {Call} call @param {RunModel} run
 */
export function outcome(call, run) {
  if (call.result) return resultOutcome(call.result, call.startedAt);
  const over = run.finished !== null && run.finished.stop !== "waiting";
  if (call.startedAt !== null) return over ? "lost" : "running";
  if (call.verdict === "deny") return "denied";
  if (over) return "lost";
  return call.verdict === "ask" && !call.granted ? "waiting" : "queued";
}

/** @param {Api.ToolResult} result @param {number|null} startedAt */
function resultOutcome(result, startedAt) {
  if (!result.error) return "ok";
  if (startedAt === null) return result.error === "permission_denied" ? "denied" : "failed";
  return ["timeout", "cancelled"].includes(result.error) ? result.error : "failed";
}

/**
 * When an item ended; `now` if it has not.
 * @param {{endedAt: number|null}} thing @param {number} now
 */
export const until = (thing, now) => (thing.endedAt === null ? now : thing.endedAt);

/** The state of a run. Folding a record takes constant time. */
export class RunModel {
  constructor() {
    this.gen = {}; // marks items that this model owns: copies share items with the original
    this.count = 0;
    /** @type {number|null} */
    this.began = null;
    /** @type {number|null} */
    this.last = null;
    this.model = "";
    /** @type {Message[]} */
    this.opening = [];
    /** @type {(EventOf<"run_finished"> & {at: number})|null} */
    this.finished = null;
    /** @type {Turn[]} */
    this.turns = [];
    /** @type {Call[]} */
    this.calls = [];
    /** @type {Map<string, number>} */
    this.index = new Map(); // append-only, so copies share it
    /** @type {number[]} */
    this.lanes = []; // which call a lane holds; -1 when it is free
    /** @type {number[]} */
    this.marked = []; // lanes of calls that never ran: kept until the end of the turn
    /** @type {{from: number, to: number|null}[]} */
    this.pauses = [];
    /** @type {Turn["messages"]} */
    this.messages = [];
    this.tools = 0;
    this.tokensIn = 0;
    this.tokensOut = 0;
    this.cost = 0;
    this.unpriced = false;
    this.ran = 0;
    this.open = 0; // calls that run now
    this.openSince = 0; // the sum of their beginnings
    this.busySince = 0;
    this.sum = 0;
    this.union = 0;
  }

  /**
   * Fold the next record.
   * @param {Api.Record} record
   */
  fold(record) {
    const { event, at } = record;
    if (this.began === null) this.began = at;
    this.last = at;
    /** @type {((run: RunModel, event: any, at: number) => void)|undefined} */
    const fold = FOLDS[event.type];
    fold?.(this, event, at);
    this.count += 1;
  }

  /** A copy: later records of one do not change the other. */
  copy() {
    const copy = Object.assign(new RunModel(), this, {
      gen: {}, turns: this.turns.slice(), calls: this.calls.slice(), lanes: this.lanes.slice(),
      marked: this.marked.slice(), pauses: this.pauses.slice(), messages: this.messages.slice(),
    });
    this.gen = {};
    return copy;
  }

  /** The time of the first record; 0 before there is one. */
  get origin() {
    return this.began ?? 0;
  }

  /** The cost; null if a part has no price. */
  get price() {
    return this.unpriced ? null : this.cost;
  }

  /**
   * The sum of the call durations, less the time in which calls ran.
   * @param {number} now
   */
  saved(now) {
    const sum = this.sum + this.open * now - this.openSince;
    return Math.max(0, sum - this.union - (this.open ? now - this.busySince : 0));
  }

  /**
   * The call with this id, if there is one yet.
   * @param {string} id @returns {Call|null}
   */
  callOf(id) {
    const found = this.index.get(id);
    return found !== undefined && found < this.calls.length ? this.calls[found] : null;
  }

  /**
   * The last turn that started within the first `count` records.
   * @param {number} count
   */
  turnAt(count) {
    let low = 0, high = this.turns.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.turns[middle].first < count) low = middle + 1; else high = middle;
    }
    return low ? this.turns[low - 1] : null;
  }

  turn() {
    return this.turns.length ? this.own(this.turns, this.turns.length - 1) : null;
  }

  /** @template {{gen: object}} Item @param {Item[]} list @param {number} place @returns {Item} */
  own(list, place) {
    const found = list[place];
    if (found.gen === this.gen) return found;
    list[place] = { ...found, gen: this.gen };
    return list[place];
  }

  /** @param {string} id @returns {Call} */
  call(id, name = "") {
    const found = this.index.get(id);
    if (found !== undefined && found < this.calls.length) return this.own(this.calls, found);
    const turn = this.turn();
    const made = {
      gen: this.gen, place: this.calls.length, id, name, turn: this.turns.length - 1,
      written: "", arguments: null, askedAt: this.last, from: null, startedAt: null, endedAt: null,
      verdict: "", code: "", reason: "", answers: [], granted: false, requestId: "", output: "",
      machine: "", result: null, lane: -1, first: this.count, last: null, judgedAt: null,
    };
    this.index.set(id, made.place);
    this.calls.push(made);
    if (turn) turn.calls = [...turn.calls, made.place];
    return made;
  }

  /**
   * Give a call the first free lane.
   * @param {Call} call @param {number} at
   */
  takeLane(call, at) {
    if (call.from === null) call.from = at;
    if (call.lane >= 0) return;
    let lane = this.lanes.indexOf(-1);
    if (lane < 0) lane = this.lanes.length;
    this.lanes[lane] = call.place;
    call.lane = lane;
  }

  /** @param {Api.Usage|null} [usage] @param {number|null} [cost] */
  spend(usage, cost) {
    this.tokensIn += usage?.input || 0;
    this.tokensOut += usage?.output || 0;
    if (typeof cost === "number") this.cost += cost; else if (usage) this.unpriced = true;
  }
}

/** @param {RunModel} run @param {number} at */
function endTurn(run, at) {
  for (const lane of run.marked.splice(0)) run.lanes[lane] = -1;
  const turn = run.turn();
  if (turn && turn.endedAt === null) turn.endedAt = at;
}

/** @param {RunModel} run @param {EventOf<"run_started">|EventOf<"run_resumed">} event */
function begin(run, event) {
  run.model = event.model;
  if ("messages" in event) run.opening = event.messages;
}

/** @param {RunModel} run @param {EventOf<"run_resumed">} event @param {number} at */
function resume(run, event, at) {
  begin(run, event);
  const gap = run.pauses.at(-1);
  if (gap && gap.to === null) run.pauses[run.pauses.length - 1] = { ...gap, to: at };
  const turn = run.turn();
  if (turn && run.finished) turn.endedAt = null; // the turn continues
  run.finished = null;
}

/** @param {RunModel} run @param {EventOf<"turn_started">} event @param {number} at */
function startTurn(run, event, at) {
  endTurn(run, at);
  run.turns.push({
    gen: run.gen, place: run.turns.length, number: event.turn, startedAt: at, firstAt: null,
    repliedAt: null, endedAt: null, text: "", reasoning: "", retries: [], failed: null,
    reply: null, calls: [], messages: run.messages, first: run.count, chars: event.chars || 0,
  });
  run.messages = [];
}

/** @param {"text"|"reasoning"} name */
function piece(name) {
  return (/** @type {RunModel} */ run, /** @type {{text: string}} */ event,
    /** @type {number} */ at) => {
    const turn = run.turn();
    if (!turn) return;
    turn[name] += event.text;
    if (turn.firstAt === null) turn.firstAt = at;
  };
}

/** @param {RunModel} run @param {EventOf<"reply_retried">} event @param {number} at */
function retry(run, event, at) {
  const turn = run.turn();
  if (!turn) return;
  turn.retries = [...turn.retries, { ...event, at }];
  turn.text = turn.reasoning = "";
}

/** @param {RunModel} run @param {EventOf<"reply_failed">} event @param {number} at */
function failReply(run, event, at) {
  run.spend(event.usage, null);
  const turn = run.turn();
  if (turn) Object.assign(turn, { failed: event, repliedAt: at });
}

/** @param {RunModel} run @param {EventOf<"replied">} options @param {number} at */
function reply(run, { reply: received }, at) {
  run.spend(received.usage || {}, received.cost);
  const turn = run.turn();
  if (!turn) return;
  Object.assign(turn, { reply: received, repliedAt: at, text: received.text || "" });
  if (received.reasoning) turn.reasoning = received.reasoning;
  if (turn.firstAt === null) turn.firstAt = at;
  for (const one of received.calls || []) {
    const call = run.call(one.id, one.name);
    call.name = one.name;
    call.written = one.arguments || "";
  }
}

/** @param {RunModel} run @param {EventOf<"call_judged">} event @param {number} at */
function judge(run, event, at) {
  const call = run.call(event.call_id);
  Object.assign(call, {
    verdict: event.verdict, code: event.code || "", reason: event.reason || "", judgedAt: at,
    machine: event.machine || "",
  });
  if (event.verdict === "ask") run.takeLane(call, at);
}

/** @param {RunModel} run @param {EventOf<"approval_answered">} event @param {number} at */
function answer(run, event, at) {
  const call = run.call(event.call_id);
  call.answers = [...call.answers, { decision: event.decision, reason: event.reason || "", at }];
  call.granted = event.decision === "once" || event.decision === "session";
}

/** @param {RunModel} run @param {EventOf<"call_started">} event @param {number} at */
function start(run, event, at) {
  const call = run.call(event.call_id, event.name);
  const again = call.startedAt !== null && call.endedAt === null;
  if (!again) {
    if (run.open === 0) run.busySince = at;
    run.open += 1;
    run.openSince += at;
    run.ran += 1;
    call.startedAt = at;
  }
  const { name, arguments: given, request_id: requestId } = event;
  Object.assign(call, { name, arguments: given, requestId, machine: event.machine || "" });
  run.takeLane(call, at);
}

/** @param {RunModel} run @param {EventOf<"call_finished">} options @param {number} at */
function finish(run, { result }, at) {
  const call = run.call(result.call_id, result.name);
  if (call.result) return;
  run.takeLane(call, at);
  Object.assign(call, { result, endedAt: at, last: run.count, name: call.name || result.name });
  if (call.startedAt === null) {
    run.marked.push(call.lane);
    return;
  }
  run.lanes[call.lane] = -1;
  run.sum += at - call.startedAt;
  run.open -= 1;
  run.openSince -= call.startedAt;
  if (run.open === 0) run.union += at - run.busySince;
}

/** @param {RunModel} run @param {EventOf<"run_finished">} event @param {number} at */
function end(run, event, at) {
  endTurn(run, at);
  run.finished = { ...event, at };
  if (event.stop === "waiting") run.pauses.push({ from: at, to: null });
}

/**
 * @type {{[Type in Api.Record["event"]["type"]]?:
 *   (run: RunModel, event: EventOf<Type>, at: number) => void}}
 */
const FOLDS = {
  run_started: begin,
  run_resumed: resume,
  tools_changed: (run, event) => { run.tools = event.tools.length; },
  turn_started: startTurn,
  text_delta: piece("text"),
  reasoning_delta: piece("reasoning"),
  reply_retried: retry,
  reply_failed: failReply,
  replied: reply,
  call_judged: judge,
  approval_answered: answer,
  call_started: start,
  call_output: (run, event) => { run.call(event.call_id).output += event.text; },
  call_finished: finish,
  prompted: (run, { why, message }) => { run.messages.push({ why: why || "", message }); },
  context_trimmed: (run, event) => { if (event.usage) run.spend(event.usage, event.cost); },
  run_finished: end,
};

const SNAPSHOT_INTERVAL = 500; // records between two stored copies

/** All records of a run, its current state, and its state after any record. */
export class Recording {
  constructor() {
    /** @type {Api.Record[]} */
    this.records = [];
    this.model = new RunModel();
    this.kept = [new RunModel()];
    this.cursor = new RunModel();
  }

  /**
   * Add a record; a known or older one is ignored.
   * @param {Api.Record} record
   */
  add(record) {
    if (record.seq <= (this.records.at(-1)?.seq ?? -1)) return false;
    this.records.push(record);
    this.model.fold(record);
    if (this.records.length % SNAPSHOT_INTERVAL === 0) this.kept.push(this.model.copy());
    return true;
  }

  /**
   * The state after `count` records.
   * @param {number} count
   */
  at(count) {
    const near = this.kept[Math.floor(count / SNAPSHOT_INTERVAL)];
    if (this.cursor.count > count || this.cursor.count < near.count) this.cursor = near.copy();
    while (this.cursor.count < count) this.cursor.fold(this.records[this.cursor.count]);
    return this.cursor;
  }
}
