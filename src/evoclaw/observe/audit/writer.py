"""The audit of one process: accepts drafts in a microsecond, and writes them in its own thread.

A draft that `note` accepted is written within milliseconds, and synced to the disk within a
second. A killed process loses only unwritten drafts; a power failure loses the last second. If the
audit cannot be written, `note` raises, and a run that cannot be audited is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError
from evoclaw.core.events import Record
from evoclaw.core.messages import JSON
from evoclaw.core.ports import ALLOW, Deny, Verdict
from evoclaw.core.redaction import Redactor, secrets_in
from evoclaw.core.tools import Call
from evoclaw.observe.audit.checkpoints import AuditKey
from evoclaw.observe.audit.records import ENCODING_ERRORS, Fields, plain, stamp
from evoclaw.observe.audit.settings import DEFAULT_SETTINGS, AuditError, AuditSettings
from evoclaw.observe.audit.sink import AuditContext, AuditDraft, AuditSink, read_arguments
from evoclaw.observe.audit.warm import WarmTier, spool_size

if TYPE_CHECKING:
    from evoclaw.observe.audit.shipper import Shipper

logger = logging.getLogger(__name__)
MAX_PENDING_DRAFTS = 10_000
"""With more unwritten drafts the disk is too slow, and `note` raises."""
MAX_BATCH_DRAFTS = 500
BATCH_DELAY_S = 0.005
"""For how long the first draft of a batch waits for others: a batch costs little more than one."""
SYNC_INTERVAL_S = 1.0
"""Between two syncs to the disk."""
MAX_CLOCK_SKEW_S = 5.0
"""Between the wall clock and the monotonic clock; a larger one is recorded as `skew_s`."""
WRITE_RETRY_DELAY_S = 0.5
"""After a write that failed."""
CLOSE_TIMEOUT_S = 10.0
"""For the thread to write what is left."""
FINAL_SHIP_TIMEOUT_S = 2.0
"""To ship the last records when a process ends; the next process ships the rest."""

TRUSTED_FIELDS = frozenset(
    {
        "agent_id", "calls", "cost", "decision", "device", "elapsed_ms", "error_type", "exit_code",
        "request_id", "result", "run_id", "tenant", "tokens_in", "tokens_out", "turns", "verdict",
    }
)  # fmt: skip
"""Fields with values that EvoClaw sets, which hold no secret and are not redacted."""
SPOOL_FULL = (
    "{} bytes wait for the cold tier, more than spool_bytes in [audit]; see why with "
    "`evoclaw audit ship`"
)


class Audit:
    """Writes audit records to the warm tier, and keeps the newest in memory."""

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
        self._clock_offset = clock() - monotonic()
        """The wall clock when the monotonic clock was 0."""
        self._drafts: SimpleQueue[AuditDraft | threading.Event | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.failing = ""
        """Why the audit cannot be written now; empty if it can."""
        self.damage = ""
        """What was damaged when it was opened; the next record is one of kind `recovered`."""

    def sink(self, context: AuditContext, before: Iterable[Record] = ()) -> AuditSink:
        """A sink for one run; `before` are the records of a resumed run so far."""
        return AuditSink(self, context, monotonic=self._monotonic, before=before)

    def note(self, draft: AuditDraft) -> None:
        """Accept a draft; raise `AuditError` if it cannot be written."""
        if self._closed or self.failing:
            raise AuditError(f"the audit cannot be written: {self.failing or 'it is closed'}")
        if self._drafts.qsize() >= MAX_PENDING_DRAFTS:
            raise AuditError("the audit cannot be written as fast as records arrive")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
            self._thread.start()
        self._drafts.put(draft)

    def record(self, kind: str, context: AuditContext, **fields: JSON) -> None:
        """Audit an event outside runs and calls: `policy_loaded`, `emergency_stop`, `approval`."""
        self.note(AuditDraft(kind, self._clock(), self._monotonic(), {**context.fields, **fields}))

    def flush(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait until all accepted drafts are written."""
        if self._thread is not None:
            done = threading.Event()
            self._drafts.put(done)
            if not done.wait(timeout):
                raise AuditError(f"the audit is not written yet: {self.failing or 'it is slow'}")

    def close(self) -> None:
        """Write what is left, and sign a checkpoint."""
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
                    dirty = self._write([self._record_of(draft) for draft in batch]) or dirty
                due = ending or self._monotonic() - synced >= SYNC_INTERVAL_S
                if due and (dirty or self.failing):
                    synced, dirty = self._monotonic(), not self._sync()
                for waiter in waiters:
                    waiter.set()
        finally:
            if not ending:  # a bug: from here on nothing may run unaudited
                self._closed, self.failing = True, "its writer failed"

    def _next(self, wait: float | None) -> tuple[list[AuditDraft], list[threading.Event], bool]:
        batch: list[AuditDraft] = []
        waiters: list[threading.Event] = []
        try:
            item = self._drafts.get(timeout=wait)
            if isinstance(item, AuditDraft):
                time.sleep(BATCH_DELAY_S)
            while True:
                if item is None:
                    return batch, waiters, True
                if isinstance(item, AuditDraft):
                    batch.append(item)
                else:
                    waiters.append(item)
                if len(batch) >= MAX_BATCH_DRAFTS:
                    break
                item = self._drafts.get_nowait()
        except Empty:
            pass
        return batch, waiters, False

    def _write(self, records: list[Fields]) -> bool:
        """Write, and retry until that succeeds or the audit is closed."""
        while True:
            try:
                self.warm.append(records, self._clock())
            except (OSError, AuditError) as problem:
                self.failing = f"{problem} ({self.warm.folder})"
                if self._closed:
                    return False
                time.sleep(WRITE_RETRY_DELAY_S)
                continue
            self.failing = ""
            return True

    def _sync(self) -> bool:
        """Sync to the disk, and check whether the spool has room."""
        try:
            self.warm.sync()
            waiting = spool_size(self.warm.folder)
        except (OSError, AuditError) as problem:
            self.failing = f"{problem} ({self.warm.folder})"
            return False
        full = waiting > self.settings.spool_bytes and self.settings.when_full == "refuse"
        self.failing = SPOOL_FULL.format(waiting) if full else ""
        return True

    def _record_of(self, draft: AuditDraft) -> Fields:
        """A redacted record with both clocks."""
        try:
            record = self._clean(draft)
        except ENCODING_ERRORS as problem:
            # A call must be on record, whatever its arguments are.
            names = ("tenant", "user", "agent_id", "run_id", "call_id", "request_id", "result")
            known = {name: plain(draft.fields.get(name)) for name in names}
            record = known | {"unrecordable": type(problem).__name__}
        skew = draft.at - draft.clock - self._clock_offset
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
            parameters = draft.parameters
            parameters = read_arguments(parameters) if isinstance(parameters, str) else parameters
            value = self._redactor.value(parameters, draft.marks, limit=limit)
            record["parameters"] = plain(value)
        return record


def open_audit(
    data: Path,
    settings: AuditSettings = DEFAULT_SETTINGS,
    *,
    secrets: Iterable[str] = (),
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> Audit:
    """The audit in a data folder; `secrets` are values that are redacted everywhere."""
    key = AuditKey.load_or_create(data / "audit.key")
    try:
        warm = WarmTier(data / "audit", key, checkpoint_every=settings.checkpoint_every)
    except OSError as problem:
        raise ConfigError(f"cannot create the audit folder: {problem}") from None
    redactor = Redactor(secrets, key=key.secret_for("redaction"))
    audit = Audit(warm, settings, redactor, clock=clock, monotonic=monotonic)
    if problem := warm.problem():
        audit.damage = f"{problem}; find out what is missing with `evoclaw audit verify`"
        logger.error("the audit in %s is damaged: %s", warm.folder, audit.damage)
    return audit


@asynccontextmanager
async def serving_audit(
    folder: Path, settings: AuditSettings, env: Mapping[str, str], *, long_running: bool = False
) -> AsyncGenerator[Audit | None]:
    """The audit in a folder, signed and shipped when the block ends; None if it is disabled.

    Args:
        folder: The data folder.
        settings: The audit settings.
        env: The environment; its secrets are redacted.
        long_running: Whether to ship records to the cold tier as they come, too.
    """
    if not settings.enabled:
        yield None
        return
    audit = open_audit(folder, settings, secrets=secrets_in(env))
    shipping = asyncio.create_task(_keep_shipping(audit, folder, env)) if long_running else None
    try:
        yield audit
    finally:
        if shipping is not None:
            shipping.cancel()
            await asyncio.wait([shipping])
        await asyncio.to_thread(audit.close)
        await _ship_remaining(audit, folder, env)


async def _keep_shipping(audit: Audit, folder: Path, env: Mapping[str, str]) -> None:
    # Wait first: an idle device then never loads the shipper.
    await asyncio.sleep(audit.settings.ship_seconds)
    async with _shipper(audit, folder, env) as shipper:
        if shipper is not None:
            await shipper.keep_shipping()


async def _ship_remaining(audit: Audit, folder: Path, env: Mapping[str, str]) -> None:
    try:
        async with _shipper(audit, folder, env) as shipper, asyncio.timeout(FINAL_SHIP_TIMEOUT_S):
            if shipper is not None:
                await shipper.ship()
    except (TimeoutError, AuditError) as problem:
        logger.info(
            "audit not shipped to the cold tier yet, the next process ships it: %s", problem
        )


@asynccontextmanager
async def _shipper(
    audit: Audit, folder: Path, env: Mapping[str, str]
) -> AsyncGenerator[Shipper | None]:
    from evoclaw.observe.audit.cold import open_cold
    from evoclaw.observe.audit.shipper import Shipper

    cold = open_cold(folder, audit.settings, env)
    if cold is None:
        yield None
        return
    try:
        yield Shipper(audit.warm, cold, audit.settings)
    finally:
        await cold.close()


@dataclass(frozen=True, slots=True)
class Recordable:
    """A policy that denies every call while the audit cannot be written."""

    audit: Audit

    async def judge(self, call: Call) -> Verdict:
        """Deny if the call could not be audited."""
        if not self.audit.failing:
            return ALLOW
        reason = "the audit cannot be written, so nothing is run; tell the user"
        return Deny("audit", reason, f"the audit cannot be written: {self.audit.failing}")

    async def admit(self, turn: int) -> Verdict:
        """Allow: a reply has no effect by itself."""
        return ALLOW
