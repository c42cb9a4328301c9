"""The audit of one process: takes drafts in a microsecond, and writes them in a thread of its own.

What `note` has taken is on its way: within milliseconds it is in the hands of the system, within
a second on the disk. Only a killed process loses what is on the way; only a lost machine loses the
last second. When it cannot be written, `note` raises, and a run that cannot be audited is stopped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType

from evoclaw.core.errors import ConfigError
from evoclaw.core.events import Record
from evoclaw.core.messages import JSON
from evoclaw.core.ports import ALLOW, Deny, Verdict
from evoclaw.core.redaction import Redactor
from evoclaw.core.tools import Call
from evoclaw.observe.audit.checkpoints import AuditKey
from evoclaw.observe.audit.records import ENCODING_ERRORS, Fields, SealedRecord, plain, stamp
from evoclaw.observe.audit.settings import DEFAULT_SETTINGS, AuditError, AuditSettings
from evoclaw.observe.audit.sink import AuditContext, AuditDraft, AuditSink, read_arguments
from evoclaw.observe.audit.warm import WarmTier, spool_size

MAX_PENDING_DRAFTS = 10_000
"""Drafts on the way; with more, the disk is too slow, and nothing is taken."""
MAX_BATCH_DRAFTS = 500
BATCH_DELAY_S = 0.005
"""Seconds that the first of a batch waits for others: writing many costs hardly more than one."""
SYNC_INTERVAL_S = 1.0
"""Seconds between two waits for the disk."""
MAX_CLOCK_SKEW_S = 5.0
"""Seconds by which the clock may differ from the one that nobody sets."""
WRITE_RETRY_DELAY_S = 0.5
"""Seconds after which a write that failed is tried again."""
CLOSE_TIMEOUT_S = 10.0
"""Seconds that `close` waits for the thread."""

TRUSTED_FIELDS = frozenset(
    {
        "agent_id", "calls", "cost", "decision", "device", "elapsed_ms", "error_type", "exit_code",
        "request_id", "result", "run_id", "tenant", "tokens_in", "tokens_out", "turns", "verdict",
    }
)  # fmt: skip
"""What is named or counted by us alone, and so holds no secret."""
SPOOL_FULL = (
    "{} bytes wait for the cold tier, more than spool_bytes in [audit]; see why with "
    "`evoclaw audit ship`"
)


class Audit:
    """Keeps what it is told: in memory, and in the warm tier."""

    def __init__(
        self,
        warm: WarmTier,
        settings: AuditSettings = DEFAULT_SETTINGS,
        redactor: Redactor | None = None,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.warm, self.settings = warm, settings
        self._redactor = redactor or Redactor()
        self._clock, self._monotonic = clock, monotonic
        self._began = clock() - monotonic()
        """What the clock showed when the other one showed nothing."""
        self.hot: deque[SealedRecord] = deque(maxlen=settings.hot)
        """The newest records of this process."""
        self._drafts: SimpleQueue[AuditDraft | threading.Event | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.failing = ""
        """Why nothing can be written now."""

    def sink(self, who: AuditContext, before: Iterable[Record] = ()) -> AuditSink:
        """Who listens to one run; `before` is what a resumed one had recorded."""
        return AuditSink(self, who, monotonic=self._monotonic, before=before)

    def note(self, draft: AuditDraft) -> None:
        """Take a draft; raise `AuditError` if it could not be kept."""
        if self._closed or self.failing:
            raise AuditError(f"the audit cannot be written: {self.failing or 'it is closed'}")
        if self._drafts.qsize() >= MAX_PENDING_DRAFTS:
            raise AuditError("the audit cannot be written as fast as records come")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
            self._thread.start()
        self._drafts.put(draft)

    def tell(self, kind: str, who: AuditContext, **fields: JSON) -> None:
        """Note what is no call and no run: `policy_loaded`, `emergency_stop`, `approval`."""
        self.note(AuditDraft(kind, self._clock(), self._monotonic(), {**who.fields, **fields}))

    def flush(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait until everything taken so far is in the files."""
        if self._thread is not None:
            done = threading.Event()
            self._drafts.put(done)
            if not done.wait(timeout):
                raise AuditError(f"the audit is not written yet: {self.failing or 'it is slow'}")

    def close(self) -> None:
        """Write what is left, and sign it."""
        if self._closed:
            return
        self._closed = True
        if self._thread is None:
            return
        self._drafts.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive() or self.failing:
            raise AuditError(f"the audit's end was not written: {self.failing or 'it is slow'}")
        try:
            self.warm.checkpoint(self._clock())
        except (OSError, AuditError) as problem:
            raise AuditError(f"the audit could not be signed: {problem}") from None

    def __enter__(self) -> Audit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def _work(self) -> None:
        synced, dirty, ending = self._monotonic(), False, False
        try:
            while not ending:
                batch, waiters, ending = self._next(
                    SYNC_INTERVAL_S if dirty or self.failing else None
                )
                if batch:
                    dirty = self._keep([self._made(draft) for draft in batch]) or dirty
                due = ending or self._monotonic() - synced >= SYNC_INTERVAL_S
                if due and (dirty or self.failing):
                    synced, dirty = self._monotonic(), not self._synced()
                for waiter in waiters:
                    waiter.set()
        finally:
            if not ending:  # a fault of ours: then nothing more may be done unrecorded
                self._closed, self.failing = True, "its writer broke"

    def _next(self, wait: float | None) -> tuple[list[AuditDraft], list[threading.Event], bool]:
        batch: list[AuditDraft] = []
        waiters: list[threading.Event] = []
        try:
            one = self._drafts.get(timeout=wait)
            if isinstance(one, AuditDraft):
                time.sleep(BATCH_DELAY_S)
            while True:
                if one is None:
                    return batch, waiters, True
                if isinstance(one, AuditDraft):
                    batch.append(one)
                else:
                    waiters.append(one)
                if len(batch) >= MAX_BATCH_DRAFTS:
                    break
                one = self._drafts.get_nowait()
        except Empty:
            pass
        return batch, waiters, False

    def _keep(self, records: list[Fields]) -> bool:
        """Write, and try again until it works or nobody waits for it any more."""
        while True:
            try:
                sealed = self.warm.append(records, self._clock())
            except (OSError, AuditError) as problem:
                self.failing = f"{problem} ({self.warm.folder})"
                if self._closed:
                    return False
                time.sleep(WRITE_RETRY_DELAY_S)
                continue
            self.failing = ""
            self.hot.extend(sealed)
            return True

    def _synced(self) -> bool:
        """Have the disk take it, and see whether there is room for more."""
        try:
            self.warm.sync()
            waiting = spool_size(self.warm.folder)
        except (OSError, AuditError) as problem:
            self.failing = f"{problem} ({self.warm.folder})"
            return False
        full = waiting > self.settings.spool_bytes and self.settings.when_full == "refuse"
        self.failing = SPOOL_FULL.format(waiting) if full else ""
        return True

    def _made(self, draft: AuditDraft) -> Fields:
        """A record without secrets, with both stamps."""
        try:
            record = self._clean(draft)
        except ENCODING_ERRORS as problem:
            # Whatever a tool was given, that it was called must be on record.
            names = ("tenant", "user", "agent_id", "run_id", "call_id", "request_id", "result")
            kept = {name: plain(draft.fields.get(name)) for name in names}
            record = kept | {"unrecordable": type(problem).__name__}
        skew = draft.at - draft.clock - self._began
        record |= {"kind": draft.kind, "timestamp": stamp(draft.at), "at": draft.at}
        record["monotonic"] = round(draft.clock, 6)
        if abs(skew) > MAX_CLOCK_SKEW_S:
            record["skew_s"] = round(skew, 3)
        return record

    def _clean(self, draft: AuditDraft) -> Fields:
        limit = self.settings.parameter_chars
        record: Fields = {}
        for name, value in draft.fields.items():
            if name not in TRUSTED_FIELDS:
                value = plain(self._redactor.value(value, limit=limit))
            record[name] = value
        if draft.parameters is not None:
            given = draft.parameters
            given = read_arguments(given) if isinstance(given, str) else given
            record["parameters"] = plain(self._redactor.value(given, draft.marks, limit=limit))
        return record


def open_audit(
    data: Path,
    settings: AuditSettings = DEFAULT_SETTINGS,
    *,
    secrets: Iterable[str] = (),
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> Audit:
    """The audit in a data folder; `secrets` are values that must appear nowhere."""
    key = AuditKey.load_or_create(data / "audit.key")
    try:
        warm = WarmTier(data / "audit", key, checkpoint_every=settings.checkpoint_every)
    except OSError as problem:
        raise ConfigError(f"the audit's folder cannot be made: {problem}") from None
    redactor = Redactor(secrets, key=key.secret_for("redaction"))
    return Audit(warm, settings, redactor, clock=clock, monotonic=monotonic)


@dataclass(frozen=True, slots=True)
class Recordable:
    """Denies every call while the audit cannot be written; for runs and for devices."""

    audit: Audit

    async def judge(self, call: Call) -> Verdict:
        """Deny if the call could not be put on record."""
        if not self.audit.failing:
            return ALLOW
        reason = "the audit cannot be written, so nothing is run; tell the user"
        return Deny("audit", reason, f"the audit cannot be written: {self.audit.failing}")

    async def admit(self, turn: int) -> Verdict:
        """Allow: a reply does nothing by itself."""
        return ALLOW
