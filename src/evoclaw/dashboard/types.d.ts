// Types that the dashboard's scripts share.

/** What an element can contain; null, undefined and false are left out. */
type Child = Node | string | number | false | null | undefined | Child[];

/** Listeners by the name of their event. */
type Listeners = { [Name in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[Name]) => void };

/** The attributes and properties of an element; see `h` in dom.js. */
interface Props {
  class?: string | false | null;
  style?: { [name: string]: string };
  data?: { [name: string]: string };
  on?: Listeners;
  [attribute: string]: unknown;
}

/** A column of a table. */
interface Column<Row> {
  title: string;
  number?: boolean;
  /** The heading of the row, where a row is a card. */
  main?: boolean;
  /** Long texts, which get a whole line there. */
  wide?: boolean;
  cell: (row: Row) => Child;
}

/** The tone of a badge, a toast or a bar. */
type Tone = "good" | "bad" | "warn" | "busy" | "quiet";

/** The query of a request; empty values are left out. */
type Query = { [name: string]: string | number | null | undefined };

/** The options of a request. */
interface RequestOptions {
  signal?: AbortSignal;
  /** The idempotency key. */
  key?: string;
  body?: unknown;
}

/** The state of the connection to the event stream. */
type LinkState = "open" | "away";

/** The module of a view. */
interface View {
  title: string;
  mount: (root: HTMLElement, args: string[], signal: AbortSignal) => Promise<unknown>;
}

/** Changes that the event stream reports, by kind. */
interface Changes {
  fleet: Api.EdgeView[];
  runs: Api.RunView[];
  approvals: Api.ApprovalView[];
  questions: Api.QuestionView[];
  stops: Api.StopView[];
  link: LinkState;
}

/** A selected turn or call of a run, by its number. */
interface Selected {
  kind: "turn" | "call";
  place: number;
}


/** What the parts of a conversation can ask of it. */
interface ChatActions {
  changed: () => void;
  grew: () => void;
  cut: (number: number | null) => void;
  canvas: (fresh: boolean) => void;
  branch: (number: number | null, role: string, text: string) => Promise<void>;
  copy: (text: string, place: HTMLElement) => Promise<void>;
  again: (asked: string) => Promise<void>;
  isFresh: (at: number) => boolean;
  keepingPlace: (work: () => void) => void;
}

/** A block of a message or a result. */
type Block = Api.TextBlock | Api.ImageBlock | Api.ErrorBlock;

/** A message of a session. */
type Message = Api.NumberedMessage["message"];

/** An event of a run by its type. */
type EventOf<Type extends Api.Record["event"]["type"]> = Extract<Api.Record["event"], { type: Type }>;

type RunModel = import("./static/views/run/model.js").RunModel;
type Recording = import("./static/views/run/model.js").Recording;
type RunPage = import("./static/views/run/run.js").RunPage;
type Timeline = import("./static/views/run/timeline.js").Timeline;

/** A turn of a run, as folded from its records. */
interface Turn {
  gen: object;
  place: number;
  number: number;
  startedAt: number;
  firstAt: number | null;
  repliedAt: number | null;
  endedAt: number | null;
  text: string;
  reasoning: string;
  retries: (EventOf<"reply_retried"> & { at: number })[];
  failed: EventOf<"reply_failed"> | null;
  reply: Api.Reply | null;
  calls: number[];
  messages: { why: string; message: Api.UserMessage }[];
  /** The number of records before it. */
  first: number;
  chars: number;
}

/** A call of a run, as folded from its records. */
interface Call {
  gen: object;
  place: number;
  id: string;
  name: string;
  turn: number;
  /** The arguments as the model wrote them. */
  written: string;
  arguments: Api.JsonObject<any> | null;
  askedAt: number | null;
  from: number | null;
  startedAt: number | null;
  endedAt: number | null;
  judgedAt: number | null;
  verdict: string;
  code: string;
  reason: string;
  answers: { decision: string; reason: string; at: number }[];
  granted: boolean;
  requestId: string;
  output: string;
  machine: string;
  result: Api.ToolResult | null;
  lane: number;
  first: number;
  last: number | null;
}

/** A turn or a call on a timeline. */
interface Box {
  key: string;
  what: Selected;
  row: number | "band";
  from: number;
  to: number;
  left: number;
  right: number;
  order: number;
}

/** One box, or several that are too small to show separately. */
interface GatheredBox extends Box {
  small: boolean;
  many: Box[];
}
