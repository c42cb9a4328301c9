// The types of the HTTP API, made from its OpenAPI document: `make docs`. Do not edit.

declare namespace Api {
  type JsonObject<T> = { [key: string]: T };

  /** The accounts of a tenant, its users and their agents. */
  interface AccountList {
    items: Array<AccountView>;
  }

  /** The limits and spending of one account, in dollars, seconds or counts. */
  interface AccountView {
    account: string;
    closed: boolean;
    kinds: JsonObject<SpendingView>;
  }

  /** All agents, in the order of the configuration; the first is the default. */
  interface AgentList {
    agents: Array<AgentView>;
  }

  /** How often an agent ran. */
  interface AgentRunCount {
    agent: string;
    runs: number;
    last_at: number;
    cost: number;
  }

  /** An agent that the caller may invoke. */
  interface AgentView {
    name: string;
    title: string;
    description: string;
    model: string;
    capabilities: Array<string>;
    autonomy: string;
    skills: Array<string>;
    tools: Array<string> | null;
    inputs: JsonObject<Field>;
    outputs: JsonObject<Field>;
    max_iterations: number;
    max_turns: number;
    max_seconds: number;
    on: string;
    budget: JsonObject<number>;
  }

  /** A step that a person can approve for all runs of a definition. */
  interface ApprovableStep {
    name: string;
    kind: string;
    tool?: string;
    arguments?: JsonObject<any>;
    message?: string;
    covers?: string;
    approval_id?: string;
    approved_by?: string;
  }

  /** The approver answered an `ask`; the decision may be `pending`. */
  interface ApprovalAnswered {
    type: "approval_answered";
    call_id: string;
    decision: string;
    reason?: string;
    arguments?: JsonObject<any> | null;
  }

  /** The approvals that wait, oldest first, then those in force for a session. */
  interface ApprovalList {
    items: Array<ApprovalView>;
  }

  /** A tool call that waits, or waited, for a person's approval. */
  interface ApprovalView {
    id: string;
    standing: string;
    run_id: string;
    request_id: string;
    user: string;
    agent: string;
    tool: string;
    arguments: JsonObject<any>;
    sha256: string;
    code: string;
    reason: string;
    covers: string;
    asked_at: number;
    expires_at: number;
    decision?: string;
    answered_by?: string;
    answered_at?: number | null;
    answer_reason?: string;
    edited?: boolean;
    uses?: number;
    machine?: string;
    covers_step?: string;
  }

  /** An image of a message. */
  interface AttachedImage {
    media_type: "image/gif" | "image/jpeg" | "image/png" | "image/webp";
    data: string;
  }

  /** Why a run of a case failed. */
  interface AttemptProblem {
    case: string;
    problem: string;
  }

  /** Records of the audit log, the oldest first. */
  interface AuditPage {
    items: Array<JsonObject<any>>;
  }

  /** The result of verifying the audit log. */
  interface AuditReport {
    ok: boolean;
    findings: Array<FindingView>;
    records: number;
    first: number;
    last: number;
    checkpoints: number;
    signed: number;
    dropped?: Array<string>;
  }

  /** An evaluation that the service runs, or ran. */
  interface BackgroundEvaluation {
    id: string;
    agent: string;
    state: EvaluationState;
    by: string;
    version: number | null;
    candidate: number | null;
    digest: string;
    cases: Array<string>;
    repeat: number;
    runs: number;
    done: number;
    passed: number;
    problems: Array<AttemptProblem>;
    started_at: number;
    ended_at: number | null;
    error: string;
    result: number | null;
  }

  /** The machine of a started call went offline, or came back. */
  interface CallDelayed {
    type: "call_delayed";
    call_id: string;
    machine: string;
    seconds: number;
  }

  /** A call has its result; without a `CallStarted` before it, it never ran. */
  interface CallFinished {
    type: "call_finished";
    result: ToolResult;
  }

  /** The policies gave their verdict on a call. */
  interface CallJudged {
    type: "call_judged";
    call_id: string;
    verdict: string;
    code?: string;
    reason?: string;
    machine?: string;
  }

  /** A running call produced output. */
  interface CallOutput {
    type: "call_output";
    call_id: string;
    text: string;
  }

  /** A call was passed to its executor. */
  interface CallStarted {
    type: "call_started";
    call_id: string;
    name: string;
    arguments: JsonObject<any>;
    request_id: string;
    machine?: string;
  }

  /** How a model calls tools. */
  type CallStyle = "json" | "native" | "none" | "strict" | "text";

  /** What a campaign does next. */
  type CampaignAction = "judge" | "promote" | "propose" | "wait";

  /** What the campaign of an agent does next, and what it may spend. */
  interface CampaignStatus {
    agent: string;
    on: boolean;
    next: CampaignAction;
    candidate: number | null;
    stage: Stage | null;
    reason: string;
    summary: string;
    runs: number;
    max_runs: number;
    cost: number | null;
    max_cost: number | null;
    problems: Array<string>;
  }

  /** The result of a cancellation. */
  interface CancelResult {
    cancelled: boolean;
  }

  /** A candidate with what it would change. */
  interface CandidateDetail {
    candidate: CandidateView;
    last: number;
    before: JsonObject<any>;
    genome: JsonObject<any>;
    changes: JsonObject<any>;
  }

  /** The candidates of an agent. */
  interface CandidateList {
    items: Array<CandidateView>;
    last: number;
  }

  /** Where a candidate is. */
  type CandidateState = "open" | "passed" | "promoted" | "rejected" | "rolled_back" | "superseded";

  /** A proposed genome, and what the gate has said so far. */
  interface CandidateView {
    number: number;
    state: CandidateState;
    stage: Stage | null;
    at: number;
    by: string;
    reason: string;
    runs: Array<string>;
    fixed: Array<string>;
    broken: Array<string>;
    untrusted: boolean;
    digest: string;
    parent: string;
    parent_version: number;
    version: number | null;
    stages: Array<StageView>;
    hash: string;
    person_needed: string;
  }

  /** The canvas of a session. */
  interface CanvasView {
    title: string;
    format: "html" | "markdown";
    content: string;
    at: number;
  }

  /** The cases of this service. */
  interface CaseList {
    items: Array<CaseView>;
    problems: Array<string>;
  }

  /** The file of a case. */
  interface CaseText {
    case: CaseView | null;
    text: string;
    problem: string;
  }

  /** A case for evaluations. */
  interface CaseView {
    name: string;
    split: Split;
    agent: string;
    recorded: boolean;
    checks: number;
    path?: string;
  }

  /** The channels of a tenant. */
  interface ChannelList {
    items: Array<ChannelView>;
  }

  /** A code that adds the first sender who sends it. */
  interface ChannelPairingCode {
    code: string;
    valid_s: number;
  }

  /** A channel: who may use it, whether it is connected, and its last messages. */
  interface ChannelView {
    name: string;
    kind: string;
    agent: string;
    state: string;
    changed_at: number;
    account: string;
    problem: string;
    fix: string;
    senders: Array<string>;
    paired: JsonObject<string>;
    sends_answers: boolean;
    last_received_at: number | null;
    last_sent_at: number | null;
    refused: number;
    retrying: number;
    given_up: number;
    last_problem: string;
    last_problem_at: number | null;
  }

  /** A session that continues another one. */
  interface CompactedSession {
    session_id: string;
    from_session: string;
    run_id: string;
    tokens_before: number;
    tokens_after: number;
  }

  /** The model is shown less of the history, so that it fits; the history itself is unchanged. */
  interface ContextTrimmed {
    type: "context_trimmed";
    elide_before: number;
    drop_before?: number;
    summary?: string;
    result_chars?: number;
    usage?: Usage;
    cost?: number | null;
  }

  /** What a person said to a run to change its course. */
  interface Correction {
    kind: string;
    text: string;
  }

  /** A token that was created. */
  interface CreatedToken {
    id: string;
    token: string;
  }

  /** Damage that was found. */
  interface DamageList {
    items: Array<DamageView>;
  }

  /** Something that was found damaged, in the service or on an edge. */
  interface DamageView {
    source: string;
    text: string;
  }

  /** An answer that could not be delivered, as the operator sees it. */
  interface DeadLetter {
    id: string;
    channel: string;
    sender: string;
    answer: OutboxMessage;
    attempts: number;
    problem: string;
    made_at: number;
  }

  /** The description of a declared step, for people. */
  interface DeclaredStep {
    stage: string;
    name: string;
    does: string;
  }

  /** The workflow definitions. */
  interface DefinitionList {
    items: Array<DefinitionView>;
  }

  /** The text of a definition. */
  interface DefinitionText {
    text: string;
    sha256: string;
  }

  /** A workflow definition, or what is wrong with it. */
  interface DefinitionView {
    name: string;
    description?: string;
    inputs?: JsonObject<any>;
    steps?: Array<string>;
    problem?: string;
    next_at?: number | null;
    sha256?: string;
    approvable?: Array<ApprovableStep>;
    schedule?: ScheduleView | null;
    agents?: Array<string>;
    is_file?: boolean;
  }

  /** Which agent delegated to which edge or agent, and how that went. */
  interface Delegation {
    source: string;
    target: string;
    kind: string;
    calls: number;
    errors: number;
    last: number;
  }

  /** Which agents delegated to which agents and edges, by name. */
  interface DelegationList {
    items: Array<Delegation>;
  }

  /** A response that was deleted. */
  interface DeletedResponse {
    id: string;
    object?: string;
    deleted?: boolean;
  }

  /** One difference between two runs. */
  interface Difference {
    turn: number;
    what: string;
    a: any;
    b: any;
  }

  /** The average, median, 95th percentile and maximum of many numbers; null if there are none. */
  interface Distribution {
    avg?: number | null;
    p50?: number | null;
    p95?: number | null;
    max?: number | null;
  }

  /** An invitation for a new edge: as a command, a link and a QR code. */
  interface EdgeInvitation {
    url: string;
    token: string;
    link: string;
    command: string;
    qr: Array<string>;
    ca_sha256?: string;
    warning?: string;
  }

  /** The edges, or a page of them, sorted by id. */
  interface EdgeList {
    items: Array<EdgeView>;
    next?: string;
  }

  /** The tools of an edge, in the order of its advert. */
  interface EdgeToolList {
    items: Array<ToolView>;
  }

  /** One edge. */
  interface EdgeView {
    agent_id: string;
    online: boolean;
    state: string;
    type?: string;
    summary?: string;
    problem?: string;
    has_model?: boolean;
    tools?: Array<string>;
    in_flight?: number;
    queued?: number;
    approved?: Array<string>;
    waiting?: Array<string>;
    surface?: string;
    last_seen?: number;
    cpu_percent?: number;
    memory_mb?: number;
    uptime_s?: number;
    room?: number | null;
    loads?: Array<number>;
    default?: boolean;
    delivery_guarantees?: boolean;
    genome?: string;
  }

  /** What a tool does to its resource. */
  type Effect = "read" | "write";

  /** A failure, worded for the model: what went wrong and what to do next. */
  interface ErrorBlock {
    type: "error";
    kind: ErrorKind;
    text: string;
    label?: Label;
  }

  /** What failed, and what to do next. */
  interface ErrorDetails {
    code: string;
    message: string;
    details?: JsonObject<any>;
  }

  /** Why a call did not succeed: the values of `error_type` on the wire. */
  type ErrorKind = "agent_offline" | "cancelled" | "conflict" | "execution_failed" | "expired" | "internal" | "invalid_params" | "not_found" | "permission_denied" | "queue_full" | "resource" | "sandbox_unavailable" | "timeout" | "too_large" | "unknown" | "version_mismatch";

  /** The evaluations of an agent. */
  interface EvaluationList {
    items: Array<BackgroundEvaluation>;
    results: Array<EvaluationResult>;
  }

  /** The result of an evaluation, as the lineage has it. */
  interface EvaluationResult {
    number: number;
    at: number;
    by: string;
    version: number | null;
    candidate: number | null;
    digest: string;
    evaluation: string;
    release: string;
    total: Rate;
    cases: JsonObject<Rate>;
    splits: JsonObject<Rate>;
    cost: number | null;
    coverage: number | null;
    recorded: number | null;
    model?: string;
    host?: string;
    evoclaw_version?: string;
  }

  /** Where an evaluation is. */
  type EvaluationState = "cancelled" | "completed" | "failed" | "interrupted" | "running";

  /** Where the genomes of all agents are. */
  interface EvolutionOverview {
    items: Array<EvolutionStatus>;
  }

  /** Where the genome of an agent is. */
  interface EvolutionStatus {
    agent: string;
    version: number;
    candidates: number;
    waiting: Array<number>;
    evaluating: boolean;
    status: string;
    result: EvaluationResult | null;
  }

  /** Replies that could not be delivered, the newest first. */
  interface FailedDeliveryList {
    items: Array<DeadLetter>;
  }

  /** One input or output of an agent. */
  interface Field {
    type?: FieldType;
    description?: string;
    required?: boolean;
  }

  /** The type of an input or output, as JSON Schema names it. */
  type FieldType = "any" | "array" | "boolean" | "integer" | "number" | "object" | "string";

  /** One integrity problem of the audit log. */
  interface FindingView {
    kind: string;
    place: string;
    line: number;
    text: string;
  }

  /** Why the model stopped writing. */
  type Finish = "calls" | "filtered" | "length" | "stop";

  /** Judged calls and runs of an edge since its start. */
  interface FitnessCount {
    calls?: number;
    succeeded?: number;
    runs?: number;
    points?: number;
  }

  /** A lineage that `evoclaw/verify.py` can check. */
  interface GenomeExport {
    entries: Array<SignedEntry>;
  }

  /** The lineage of a genome. */
  interface GenomeHistory {
    items: Array<LineageEntry>;
  }

  /** The current genomes of the agents. */
  interface GenomeList {
    items: Array<GenomeView>;
  }

  /** A version of the genome of an agent or an edge. */
  interface GenomeView {
    agent: string;
    version: number;
    digest: string;
    restored: number | null;
    genome: JsonObject<any>;
    warnings?: Array<string>;
  }

  /** An image, base64-encoded. */
  interface ImageBlock {
    type: "image";
    media_type: string;
    data: string;
    label?: Label;
  }

  /** A page of the input items of a response. */
  interface InputItemList {
    data: Array<JsonObject<any>>;
    first_id: string;
    last_id: string;
    has_more: boolean;
    object?: string;
  }

  /** The answer of one reply without tools. */
  interface InvokeResponse {
    agent: string;
    output: JsonObject<any>;
    tokens_used: number;
    model: string;
  }

  /** The answer of the loop. */
  interface IterativeResponse {
    agent: string;
    output: JsonObject<any>;
    raw_response: string;
    tokens_used: number;
    model: string;
    iterations: number;
    tool_calls_made: number;
    tools_used: Array<string>;
    termination_reason: string;
    run_id: string;
  }

  /** Where a text came from. Joining labels never removes a flag. */
  interface Label {
    untrusted?: boolean;
    private?: boolean;
    sources?: Array<string>;
  }

  /** One entry of a lineage: a version of the genome, or an evaluation of one. */
  interface LineageEntry {
    v: 1;
    agent: string;
    number: number;
    prev: string;
    at: number;
    key: string;
    kind: "campaign" | "change" | "evaluation" | "opening" | "proposal" | "rollback" | "verdict";
    digest: string;
    by: string;
    version?: number | null;
    parent?: string | null;
    restored?: number | null;
    genome?: JsonObject<any>;
    reason?: string;
    runs?: Array<string>;
    scores?: JsonObject<any>;
    candidate?: number | null;
    stage?: string;
    passed?: boolean | null;
    untrusted?: boolean;
  }

  /** The process is alive. */
  interface Liveness {
    status: "ok";
    version: string;
  }

  /** The limits of one run. Recorded in full: a default that changes later changes no old run. */
  interface LoopSettings {
    max_turns?: number;
    max_calls_per_turn?: number;
    max_parallel?: number;
    tool_error_limit?: number;
    repeat_limit?: number;
    max_seconds?: number;
    max_result_chars?: number;
    temperature?: number | null;
    max_tokens?: number | null;
    confirm?: boolean;
    confirm_limit?: number;
    confirm_without_tools?: boolean;
    output_fields?: Array<string>;
    evidence?: boolean;
    max_call_seconds?: number;
    tool_prompt?: string;
    model_retries?: number;
    genome?: string;
  }

  /** The status of a message in a reply. */
  type MailboxState = "accepted" | "answer" | "failed" | "refused" | "waiting";

  /** The matching notes, the best first. */
  interface MemoryList {
    items: Array<JsonObject<any>>;
  }

  /** A page of messages, in order. */
  interface MessagePage {
    items: Array<NumberedMessage>;
    next?: number | null;
  }

  /** Everything of one interval. */
  interface MetricsPoint {
    at: number;
    runs: number;
    calls: number;
    errors: number;
    cost: number;
    tokens: number;
    p50_ms: number | null;
    p95_ms: number | null;
    iterations: number | null;
    saved_seconds: number;
  }

  /** The metrics of a window: of each tool, of requests, and their series. */
  interface MetricsView {
    since: number;
    until: number;
    step: number;
    tools: Array<ToolSummary>;
    requests: RequestSummary;
    series: Array<MetricsPoint>;
    tool_series: JsonObject<Array<ToolPoint>>;
  }

  /** An agent as a model. */
  interface Model {
    id: string;
    created?: number;
    owned_by?: string;
    object?: string;
  }

  /** Whether a model answers. */
  interface ModelCheck {
    model: string;
    ok: boolean | null;
    problem?: string;
    answer?: string;
    seconds?: number;
    checked_at?: number | null;
  }

  /** The list of models. */
  interface ModelList {
    data: Array<Model>;
    object?: string;
  }

  /** The outcome of a test message. */
  interface NotifierCheck {
    name: string;
    ok: boolean;
    detail: string;
  }

  /** The notifiers of a tenant. */
  interface NotifierList {
    items: Array<NotifierView>;
  }

  /** A notifier, as an administrator sees it. */
  interface NotifierView {
    name: string;
    kind: string;
    on: Array<string>;
    users: Array<string>;
    max_per_hour: number;
    answers: boolean;
    last_state?: string;
    last_problem?: string;
    last_at?: number | null;
  }

  /** A message and its number in the session. */
  interface NumberedMessage {
    number: number;
    message: SystemMessage | UserMessage | Reply | ToolResult;
  }

  /** A reply to a person; may arrive twice, then with the same id. */
  interface OutboxMessage {
    id: string;
    agent_id: string;
    message_id: string;
    state: MailboxState;
    text: string;
    reason?: string;
    session?: string;
    run_id?: string;
    timestamp?: number;
    v?: number;
  }

  /** The verdict on a tool call, and the policy that decided it. */
  interface PolicyAnswer {
    verdict: "allow" | "ask" | "deny";
    code: string;
    reason: string;
    reason_for_model: string;
    by: string;
    steps: Array<PolicyStepView>;
    effects: JsonObject<any>;
  }

  /** The verdict of one policy. */
  interface PolicyStepView {
    policy: string;
    verdict: string;
    code?: string;
    reason?: string;
  }

  /** The policies and settings that judge tool calls. */
  interface PolicyView {
    level: string;
    presets: Array<string>;
    rules: Array<RuleView>;
    settings: JsonObject<any>;
    pipelines?: JsonObject<Array<DeclaredStep>>;
  }

  /** The answer of an edge to a ping. */
  interface Pong {
    agent_id: string;
    seconds: number;
  }

  /** What a model can do. */
  interface Profile {
    context_tokens?: number;
    max_output_tokens?: number;
    calls?: CallStyle;
    images?: boolean;
  }

  /** The loop, or a person, added a user message to the history. */
  interface Prompted {
    type: "prompted";
    message: UserMessage;
    why?: string;
  }

  /** The public key that a browser subscribes with. */
  interface PushKey {
    key: string;
  }

  /** A stored push subscription. */
  interface PushSubscriptionView {
    id: string;
  }

  /** The questions that wait for an answer, oldest first. */
  interface QuestionList {
    items: Array<QuestionView>;
  }

  /** A question of a run to its user. */
  interface QuestionView {
    id: string;
    session_id: string;
    run_id: string;
    text: string;
    options?: Array<string>;
    multiple?: boolean;
    own_words?: boolean;
  }

  /** A share of attempts, with its 95 % interval (Wilson). */
  interface Rate {
    passed: number;
    attempts: number;
    rate: number;
    low: number;
    high: number;
  }

  /** The outcome of a run, and what a person said of it. */
  interface RatedOutcome {
    outcome: RunOutcome;
    rating: Rating | null;
  }

  /** A run, and what a person said of it. */
  interface RatedRun {
    run_id: string;
    session_id: string;
    agent: string;
    state: RunStatus;
    stop?: StopReason | null;
    asked?: string;
    text?: string;
    reason?: string;
    turns?: number;
    calls?: number;
    tokens_in?: number;
    tokens_out?: number;
    cost?: number | null;
    began_at?: number;
    ended_at?: number | null;
    parent_run?: string;
    owner?: string;
    rating?: Rating | null;
  }

  /** A user's rating of a run. */
  interface Rating {
    verdict: "bad" | "good";
    reason: string;
    user: string;
    at: number;
  }

  /** Whether the process can serve requests, and the state of each component. */
  interface Readiness {
    ready: boolean;
    parts: JsonObject<string>;
  }

  /** A piece of the model's reasoning. */
  interface ReasoningDelta {
    type: "reasoning_delta";
    text: string;
  }

  /** The receipts of a run, by device, in order. */
  interface ReceiptList {
    items: Array<ReceiptView>;
  }

  /** A device's signed receipt of one call. */
  interface ReceiptView {
    call_id: string;
    request_id: string;
    agent_id: string;
    chain: string;
    counter: number;
    hash: string;
    at: number;
    valid: boolean | null;
    receipt: JsonObject<any>;
  }

  /** An event with its run, its number and its time. */
  interface Record {
    run_id: string;
    seq: number;
    at: number;
    event: RunStarted | RunResumed | ToolsChanged | TurnStarted | TextDelta | ReasoningDelta | ReplyRetried | ReplyFailed | Replied | CallJudged | ApprovalAnswered | CallStarted | CallOutput | CallDelayed | CallFinished | Prompted | ContextTrimmed | RunFinished;
  }

  /** What changed when the settings file was read again. */
  interface ReloadResult {
    changed: Array<string>;
    needs_restart: Array<string>;
    kept_by_edge: Array<string>;
  }

  /** The outcome of replaying a run. */
  interface ReplayResult {
    same: boolean;
    records: number;
    differs_at?: number | null;
    reason?: string;
  }

  /** The model's reply is complete. */
  interface Replied {
    type: "replied";
    reply: Reply;
  }

  /** One reply of the model: text, calls, or both. */
  interface Reply {
    role: "assistant";
    text?: string;
    calls?: Array<ToolCall>;
    finish?: Finish;
    usage?: Usage;
    model?: string;
    cost?: number | null;
    reasoning?: string;
    recovered?: boolean;
  }

  /** The model gave no reply; the tokens of the failed attempts are spent all the same. */
  interface ReplyFailed {
    type: "reply_failed";
    kind: string;
    reason: string;
    usage?: Usage;
  }

  /** The request for a reply failed and is retried; the deltas of the reply so far are void. */
  interface ReplyRetried {
    type: "reply_retried";
    kind: string;
    reason: string;
    attempt: number;
    wait: number;
  }

  /** How requests went, and what they cost. */
  interface RequestSummary {
    count: number;
    stops: JsonObject<number>;
    iterations: Distribution;
    seconds: Distribution;
    tokens_in: number;
    tokens_out: number;
    cost: number;
    unpriced: number;
    failed_calls: number;
    recovered_calls: number;
    recovery_rate: number | null;
    saved_seconds: number;
    error_types: JsonObject<number>;
  }

  /** A response. */
  interface ResponseObject {
    id: string;
    status: string;
    output: Array<JsonObject<any>>;
    object?: string;
  }

  /** When a roll-out continues, and when it is rolled back. */
  interface RolloutBounds {
    soak_s?: number;
    min_evidence?: number;
    max_drop?: number;
    max_failed?: number;
    answer_s?: number;
  }

  /** A roll-out and its edges. */
  interface RolloutDetail {
    rollout: RolloutView;
    edges: Array<RolloutEdgeView>;
  }

  /** What an edge has. */
  type RolloutEdgeState = "applied" | "applying" | "planned" | "refused" | "restored" | "reverting" | "skipped";

  /** An edge of a roll-out. */
  interface RolloutEdgeView {
    agent_id: string;
    state: RolloutEdgeState;
    stage: number | null;
    before_version: number;
    before_digest: string;
    version: number;
    digest: string;
    before: FitnessCount | null;
    after: FitnessCount;
    failed: string;
  }

  /** Roll-outs of genomes. */
  interface RolloutList {
    items: Array<RolloutView>;
  }

  /** Where a roll-out is. */
  type RolloutState = "completed" | "rolled_back" | "rolling_back" | "running";

  /** A roll-out of a genome to edges. */
  interface RolloutView {
    id: string;
    selector: string;
    genome: JsonObject<any>;
    state: RolloutState;
    stage: number;
    stages: Array<number>;
    bounds: RolloutBounds;
    by: string;
    reason: string;
    started_at: number;
    halted_at: number | null;
    halted_by: string;
    problem: string;
    ended_at: number | null;
    edges: JsonObject<number>;
  }

  /** One rule of the command policy. */
  interface RuleView {
    name: string;
    verdict: string;
    summary: string;
    source: string;
  }

  /** The differences of two runs; ids and times are ignored. */
  interface RunComparison {
    same: boolean;
    differences: Array<Difference>;
  }

  /** The runs of each agent. */
  interface RunCounts {
    items: Array<AgentRunCount>;
  }

  /** The run ended; `text` is the answer for the user. */
  interface RunFinished {
    type: "run_finished";
    stop: StopReason;
    text: string;
    output?: JsonObject<any>;
    reason?: string;
    turns?: number;
    calls?: number;
    tools_used?: Array<string>;
    usage?: Usage;
    cost?: number | null;
  }

  /** The outcome of a run, so far if it has not ended. */
  interface RunOutcome {
    genome: string;
    stop: StopReason | null;
    turns: number;
    calls: number;
    cost: number | null;
    errors: JsonObject<number>;
    model_errors: JsonObject<number>;
    denied: number;
    retries: number;
    corrections: Array<Correction>;
  }

  /** A page of runs, the newest first. */
  interface RunPage {
    items: Array<RatedRun>;
    next?: string;
  }

  /** A run that was stopped or interrupted continues where its records end. */
  interface RunResumed {
    type: "run_resumed";
    model: string;
    settings: LoopSettings;
    profile: Profile;
  }

  /** A run started with these messages, under these limits. */
  interface RunStarted {
    type: "run_started";
    model: string;
    messages: Array<SystemMessage | UserMessage | Reply | ToolResult>;
    settings: LoopSettings;
    profile: Profile;
  }

  /** The status of a run. */
  type RunStatus = "ended" | "queued" | "running" | "waiting";

  /** A run as the API shows it. */
  interface RunView {
    run_id: string;
    session_id: string;
    agent: string;
    state: RunStatus;
    stop?: StopReason | null;
    asked?: string;
    text?: string;
    reason?: string;
    turns?: number;
    calls?: number;
    tokens_in?: number;
    tokens_out?: number;
    cost?: number | null;
    began_at?: number;
    ended_at?: number | null;
    parent_run?: string;
    owner?: string;
  }

  /** A definition after a change. */
  interface SavedDefinition {
    saved: boolean;
    text: string;
    sha256: string;
    reload?: ReloadResult | null;
  }

  /** When a workflow starts by itself. */
  interface ScheduleView {
    cron?: string;
    every_s?: number | null;
    timezone?: string;
    enabled?: boolean;
    inputs?: JsonObject<any>;
  }

  /** A page of sessions, the newest first. */
  interface SessionPage {
    items: Array<SessionView>;
    next?: string;
  }

  /** A conversation with an agent. */
  interface SessionView {
    id: string;
    agent: string;
    owner: string;
    title: string;
    created_at: number;
    parent?: string;
    messages?: number;
    last_run?: string;
    is_open?: boolean;
    on?: string;
  }

  /** A signed entry of a lineage. */
  interface SignedEntry {
    type: string;
    body: string;
    signature: string;
  }

  /** The available skills, and the unavailable ones with the reason. */
  interface SkillList {
    items: Array<SkillView>;
    problems: Array<SkillProblem>;
  }

  /** A skill that is not available. */
  interface SkillProblem {
    path: string;
    reason: string;
    refused: boolean;
  }

  /** A skill: its purpose and its tools. */
  interface SkillView {
    name: string;
    version: string;
    description: string;
    digest: string;
    approved: boolean;
    tools?: Array<string>;
    allowed_tools?: Array<string> | null;
    references?: Array<string>;
    notes?: Array<string>;
    instructions?: string;
    disallowed_tools?: Array<string>;
  }

  /** Spending of one kind, and what is left. */
  interface SpendingView {
    spent: number;
    reserved: number;
    limit: number | null;
    per_seconds: number | null;
    left: number | null;
  }

  /** Who may see a case. */
  type Split = "sealed" | "train" | "validation";

  /** The stages of the gate, in their order. */
  type Stage = "approval" | "canary" | "safety" | "shadow" | "static" | "validation";

  /** The last verdict of a stage of the gate. */
  interface StageView {
    stage: Stage;
    passed: boolean | null;
    by: string;
    at: number;
    reason: string;
    evidence: JsonObject<any>;
  }

  /** A person's answer to a step. */
  type StepDecision = "approve" | "deny" | "fail" | "retry" | "skip";

  /** The state of a step. */
  type StepState = "failed" | "pending" | "running" | "skipped" | "succeeded" | "unknown" | "waiting";

  /** A step and its progress. */
  interface StepView {
    name: string;
    kind: string;
    state: StepState;
    attempts?: number;
    started_at?: number | null;
    ended_at?: number | null;
    run_ids?: Array<string>;
    workflow_id?: string;
    output?: any;
    error?: string;
    due?: number | null;
    asked?: string;
    answers?: Array<StepDecision>;
  }

  /** The stops in force. */
  interface StopList {
    items: Array<StopView>;
  }

  /** Why a run ended. */
  type StopReason = "budget_exceeded" | "cancelled" | "completed" | "duration_exceeded" | "error" | "loop_detected" | "max_iterations" | "waiting";

  /** An emergency stop, in force until a person releases it. */
  interface StopView {
    kind: string;
    name?: string;
    reason?: string;
    by?: string;
    at?: number;
  }

  /** One event of a stream. */
  interface StreamedEvent {
    event: string;
    data: string;
    id?: string;
  }

  /** The instructions a run starts with. */
  interface SystemMessage {
    role: "system";
    text: string;
  }

  /** A piece of text. */
  interface TextBlock {
    type: "text";
    text: string;
    label?: Label;
  }

  /** A piece of the reply's text. */
  interface TextDelta {
    type: "text_delta";
    text: string;
  }

  /** The tokens of a tenant, the newest first. */
  interface TokenList {
    items: Array<TokenView>;
  }

  /** An API token, without its secret. */
  interface TokenView {
    id: string;
    name: string;
    tenant: string;
    user: string;
    scopes: Array<string>;
    made_at: number;
    expires_at: number | null;
    used_at: number | null;
    revoked_at: number | null;
  }

  /** A tool that the model may call, and what policies and executors must know about it. */
  interface Tool {
    name: string;
    description: string;
    parameters: JsonObject<any>;
    permissions?: Array<string>;
    effect?: Effect;
    resources?: Array<string>;
    timeout?: number;
    max_timeout?: number;
    idempotent?: boolean;
    streams?: boolean;
    slack?: number;
    version?: string;
    aliases?: Array<string>;
    outside?: boolean;
    private?: boolean;
    acts?: boolean | null;
    sends?: boolean;
    isolated?: boolean;
  }

  /** One call exactly as the model wrote it; nothing has been checked yet. */
  interface ToolCall {
    id: string;
    name: string;
    arguments?: string;
  }

  /** How a call ended, or what it waits for. */
  interface ToolCallResponse {
    run_id: string;
    state: string;
    text: string;
    error?: string | null;
    details?: JsonObject<any>;
  }

  /** The available tools, and the unavailable ones with the reason. */
  interface ToolList {
    items: Array<ToolView>;
    absent: Array<UnavailableToolView>;
    problems?: Array<ToolProblem>;
  }

  /** One tool in one interval. */
  interface ToolPoint {
    at: number;
    calls: number;
    errors: number;
    p50_ms: number | null;
    p95_ms: number | null;
  }

  /** A file, skill, MCP server or MCP tool that cannot be used. */
  interface ToolProblem {
    name: string;
    why: string;
  }

  /** The result of one call. */
  interface ToolResult {
    role: "tool";
    call_id: string;
    name: string;
    blocks: Array<TextBlock | ImageBlock | ErrorBlock>;
    error?: ErrorKind | null;
    details?: JsonObject<any>;
  }

  /** How the calls of one tool went. */
  interface ToolSummary {
    tool: string;
    calls: number;
    succeeded: number;
    failed: number;
    denied: number;
    timeouts: number;
    success_rate: number;
    avg_ms: number | null;
    p50_ms: number | null;
    p95_ms: number | null;
    max_ms: number | null;
    errors: JsonObject<number>;
    result_bytes: number;
    last_error?: string;
    last_error_at?: number | null;
  }

  /** A tool of this orchestrator. */
  interface ToolView {
    name: string;
    description: string;
    parameters: JsonObject<any>;
    permissions: Array<string>;
    effect: string;
    timeout: number;
    max_timeout: number;
    idempotent: boolean;
    version: string;
    isolated?: boolean;
  }

  /** The tools that are available: at the start, and whenever they change. */
  interface ToolsChanged {
    type: "tools_changed";
    tools: Array<Tool>;
  }

  /** The model is asked for a reply. */
  interface TurnStarted {
    type: "turn_started";
    turn: number;
    offer_tools?: boolean;
    chars?: number;
  }

  /** A tool that is not available. */
  interface UnavailableToolView {
    name: string;
    why: string;
    description: string;
    parameters: JsonObject<any>;
    permissions: Array<string>;
  }

  /** How undoing a run ended. */
  interface UndoResult {
    run_id: string;
    machines: Array<UndoneMachine>;
    left?: Array<string>;
  }

  /** How undoing a run ended on one machine. */
  interface UndoneMachine {
    machine: string;
    run_id: string;
    state: string;
    restored?: Array<string>;
    not_restored?: JsonObject<string>;
    reason?: string;
  }

  /** Tokens, with the same meaning for every provider. */
  interface Usage {
    input?: number;
    output?: number;
    cache_read?: number;
    cache_write?: number;
  }

  /** A message of a person, or of the loop on their behalf. */
  interface UserMessage {
    role: "user";
    blocks: Array<TextBlock | ImageBlock | ErrorBlock>;
  }

  /** The identity and scopes of the caller. */
  interface Whoami {
    tenant: string;
    user: string;
    token: string;
    scopes: Array<string>;
  }

  /** A page of workflow runs, the newest first, without their steps. */
  interface WorkflowPage {
    items: Array<WorkflowView>;
    next?: string;
  }

  /** The state of a workflow. */
  type WorkflowState = "cancelled" | "failed" | "queued" | "running" | "succeeded" | "waiting";

  /** A workflow that was started. */
  interface WorkflowView {
    id: string;
    name: string;
    state: WorkflowState;
    started_at: number;
    inputs?: JsonObject<any>;
    output?: any;
    error?: string;
    steps?: Array<StepView>;
    ended_at?: number | null;
    parent?: string;
    user?: string;
    scheduled_for?: number | null;
  }

  /** The answer to GET of a path. */
  type Get<P extends string> =
    P extends `/v1/agents/${string}/candidates/${string}` ? CandidateDetail :
    P extends `/v1/agents/${string}/evaluations/${string}` ? BackgroundEvaluation :
    P extends `/v1/runs/${string}/compare/${string}` ? RunComparison :
    P extends `/v1/agents/${string}/campaign` ? CampaignStatus :
    P extends `/v1/agents/${string}/candidates` ? CandidateList :
    P extends `/v1/agents/${string}/definition` ? DefinitionText :
    P extends `/v1/agents/${string}/evaluations` ? EvaluationList :
    P extends `/v1/agents/${string}/model-check` ? ModelCheck :
    P extends `/v1/budgets/runs/${string}` ? AccountView :
    P extends `/v1/fleet/${string}/tools` ? EdgeToolList :
    P extends `/v1/genomes/${string}/export` ? GenomeExport :
    P extends `/v1/genomes/${string}/history` ? GenomeHistory :
    P extends `/v1/responses/${string}/input_items` ? InputItemList :
    P extends `/v1/runs/${string}/events` ? StreamedEvent :
    P extends `/v1/runs/${string}/outcome` ? RatedOutcome :
    P extends `/v1/runs/${string}/rating` ? Rating :
    P extends `/v1/runs/${string}/receipts` ? ReceiptList :
    P extends `/v1/sessions/${string}/canvas` ? CanvasView :
    P extends `/v1/sessions/${string}/messages` ? MessagePage :
    P extends `/v1/workflow-runs/${string}/events` ? StreamedEvent :
    P extends `/v1/workflows/${string}/definition` ? DefinitionText :
    P extends "/v1/audit/verify" ? AuditReport :
    P extends "/v1/deliveries/given-up" ? FailedDeliveryList :
    P extends "/v1/fleet/delegations" ? DelegationList :
    P extends "/v1/push/key" ? PushKey :
    P extends `/v1/agents/${string}` ? AgentView :
    P extends `/v1/approvals/${string}` ? ApprovalView :
    P extends `/v1/cases/${string}` ? CaseText :
    P extends `/v1/fleet/${string}` ? EdgeView :
    P extends `/v1/genome-rollouts/${string}` ? RolloutDetail :
    P extends `/v1/genomes/${string}` ? GenomeView :
    P extends `/v1/models/${string}` ? Model :
    P extends `/v1/responses/${string}` ? ResponseObject :
    P extends `/v1/runs/${string}` ? RatedRun :
    P extends `/v1/sessions/${string}` ? SessionView :
    P extends `/v1/skills/${string}` ? SkillView :
    P extends `/v1/tools/${string}` ? ToolView :
    P extends `/v1/workflow-runs/${string}` ? WorkflowView :
    P extends "/health/live" ? Liveness :
    P extends "/health/ready" ? Readiness :
    P extends "/v1/agents" ? AgentList :
    P extends "/v1/approvals" ? ApprovalList :
    P extends "/v1/audit" ? AuditPage :
    P extends "/v1/budgets" ? AccountList :
    P extends "/v1/cases" ? CaseList :
    P extends "/v1/channels" ? ChannelList :
    P extends "/v1/damage" ? DamageList :
    P extends "/v1/events" ? StreamedEvent :
    P extends "/v1/evolution" ? EvolutionOverview :
    P extends "/v1/figures" ? MetricsView :
    P extends "/v1/fleet" ? EdgeList :
    P extends "/v1/genome-rollouts" ? RolloutList :
    P extends "/v1/genomes" ? GenomeList :
    P extends "/v1/me" ? Whoami :
    P extends "/v1/memory" ? MemoryList :
    P extends "/v1/models" ? ModelList :
    P extends "/v1/notify" ? NotifierList :
    P extends "/v1/policy" ? PolicyView :
    P extends "/v1/questions" ? QuestionList :
    P extends "/v1/run-counts" ? RunCounts :
    P extends "/v1/runs" ? RunPage :
    P extends "/v1/sessions" ? SessionPage :
    P extends "/v1/skills" ? SkillList :
    P extends "/v1/stops" ? StopList :
    P extends "/v1/tokens" ? TokenList :
    P extends "/v1/tools" ? ToolList :
    P extends "/v1/workflow-runs" ? WorkflowPage :
    P extends "/v1/workflows" ? DefinitionList :
    any;

  /** The answer to POST of a path. */
  type Post<P extends string> =
    P extends `/v1/agents/${string}/candidates/${string}/decision` ? CandidateView :
    P extends `/v1/agents/${string}/evaluations/${string}/cancel` ? BackgroundEvaluation :
    P extends `/v1/workflows/${string}/steps/${string}/approve` ? ApprovableStep :
    P extends `/v1/agents/${string}/campaign` ? CampaignStatus :
    P extends `/v1/agents/${string}/evaluations` ? BackgroundEvaluation :
    P extends `/v1/agents/${string}/invoke` ? InvokeResponse :
    P extends `/v1/agents/${string}/invoke-iterative` ? IterativeResponse :
    P extends `/v1/agents/${string}/model-check` ? ModelCheck :
    P extends `/v1/approvals/${string}/answer` ? ApprovalView :
    P extends `/v1/approvals/${string}/withdraw` ? ApprovalView :
    P extends `/v1/fleet/${string}/approve` ? EdgeView :
    P extends `/v1/fleet/${string}/ping` ? Pong :
    P extends `/v1/fleet/${string}/revoke` ? EdgeView :
    P extends `/v1/genome-rollouts/${string}/halt` ? RolloutView :
    P extends `/v1/genomes/${string}/rollback` ? GenomeView :
    P extends `/v1/genomes/${string}/versions` ? GenomeView :
    P extends `/v1/notify/${string}/test` ? NotifierCheck :
    P extends `/v1/responses/${string}/cancel` ? ResponseObject :
    P extends `/v1/runs/${string}/answer` ? RunView :
    P extends `/v1/runs/${string}/approve` ? ApprovalView :
    P extends `/v1/runs/${string}/cancel` ? CancelResult :
    P extends `/v1/runs/${string}/deny` ? ApprovalView :
    P extends `/v1/runs/${string}/fork` ? RunView :
    P extends `/v1/runs/${string}/messages` ? RunView :
    P extends `/v1/runs/${string}/rating` ? Rating :
    P extends `/v1/runs/${string}/replay` ? ReplayResult :
    P extends `/v1/runs/${string}/undo` ? UndoResult :
    P extends `/v1/sessions/${string}/branch` ? SessionView :
    P extends `/v1/sessions/${string}/compact` ? CompactedSession :
    P extends `/v1/sessions/${string}/messages` ? RunView :
    P extends `/v1/tools/${string}/call` ? ToolCallResponse :
    P extends `/v1/workflow-runs/${string}/answer` ? WorkflowView :
    P extends `/v1/workflow-runs/${string}/cancel` ? CancelResult :
    P extends `/v1/workflows/${string}/runs` ? WorkflowView :
    P extends "/v1/fleet/invitations" ? EdgeInvitation :
    P extends "/v1/policy/explain" ? PolicyAnswer :
    P extends "/v1/push/subscriptions" ? PushSubscriptionView :
    P extends "/v1/settings/reload" ? ReloadResult :
    P extends `/v1/channel-pairings/${string}` ? ChannelPairingCode :
    P extends "/v1/cases" ? CaseView :
    P extends "/v1/genome-rollouts" ? RolloutView :
    P extends "/v1/responses" ? ResponseObject :
    P extends "/v1/runs" ? RunView :
    P extends "/v1/sessions" ? SessionView :
    P extends "/v1/stops" ? StopList :
    P extends "/v1/tokens" ? CreatedToken :
    any;

  /** The answer to PUT of a path. */
  type Put<P extends string> =
    P extends `/v1/agents/${string}/definition` ? SavedDefinition :
    P extends `/v1/workflows/${string}/definition` ? SavedDefinition :
    P extends `/v1/workflows/${string}/schedule` ? SavedDefinition :
    any;

  /** The answer to PATCH of a path. */
  type Patch<P extends string> =
    P extends `/v1/sessions/${string}` ? SessionView :
    any;

  /** The answer to DELETE of a path. */
  type Delete<P extends string> =
    P extends `/v1/agents/${string}` ? ReloadResult :
    P extends `/v1/responses/${string}` ? DeletedResponse :
    P extends `/v1/stops/${string}` ? StopList :
    any;
}
