"""The genome of an edge: kept in versions in its journal, changed and rolled back by commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.agent import LoopSettings
from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.genome import EDGE_TUNABLES, Genome
from evoclaw.core.genome_patches import check_skills, genome_refused, merged
from evoclaw.core.messages import JSON, ErrorKind, is_object
from evoclaw.core.pipeline import OfferStep
from evoclaw.core.tools import Tool
from evoclaw.core.tuned_runs import check_limits, check_models, run_limits
from evoclaw.skills.tuned import SkillTools, check_new_skills
from evoclaw.store.calls.journal import Journal

EDGE_SETTINGS = LoopSettings(max_turns=10, tool_error_limit=3, max_seconds=3600.0)
"""The limits of a prompt's run: a genome can lower them, but not raise them."""
EDGE_DEFAULTS = Genome(max_turns=EDGE_SETTINGS.max_turns, run_seconds=EDGE_SETTINGS.max_seconds)
"""Version 0 of an edge. Its versions are kept in full: a default that changes later changes no old
version."""

MAX_EDGE_GENOME_BYTES = 120_000
"""Of a genome as JSON, so that an answer with it and some of its versions fits into a message."""


def no_skills() -> Mapping[str, frozenset[str]]:
    """The skills of a device without any."""
    return {}


class GenomeUnreadable(EvoClawError):
    """A stored version is damaged, or of a format that this release does not know."""

    def __init__(self, version: int, problem: str) -> None:
        super().__init__(
            f"version {version} of the genome cannot be read ({problem}); roll back to another one"
        )
        self.version = version


class _Change(Struct, frozen=True):
    """The last signed change."""

    issued_at: float
    request_id: str


class Genomes:
    """The current genome and its versions."""

    def __init__(
        self,
        store: Journal,
        first: Genome | None = None,
        *,
        key: str = "genome",
        skills: SkillTools = no_skills,
        models: Sequence[str] = (),
        model_retries: int | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Keep versions in a store.

        Args:
            store: The journal of the device.
            first: Version 0: the configuration of the device.
            key: The name of the versions in the store.
            skills: The skills of the device.
            models: The models that answer its prompts, as configured.
            model_retries: How often a failed request to them is repeated; None: not limited.
            concurrency: The configured concurrency; None: not limited.
        """
        self._store, self._key, self._skills = store, key, skills
        self._models = models
        self._limits = {
            **run_limits(EDGE_SETTINGS),
            "model_retries": model_retries,
            "concurrency": concurrency,
        }
        self._first = replace(first or EDGE_DEFAULTS, version=0, restored=None)
        self._current: Genome | None = None
        self._lock = asyncio.Lock()

    async def load(self) -> Genome:
        """Load the newest version; must be called first."""
        kept = await self._kept()
        self._current = (
            _read(newest, kept[newest]) if (newest := max(kept, default=0)) else self._first
        )
        return self._current

    def current(self) -> Genome:
        """The current genome."""
        if self._current is None:
            raise RuntimeError("load the genomes first")
        return self._current

    async def check_order(self, issued_at: float, request_id: str) -> None:
        """Raise `ToolFailure` for a change that was signed before the last one was.

        Otherwise a broker could hold a change back, or repeat it, and so undo a newer one. The
        last change itself may be repeated: its sender asks again until it is answered.
        """
        key = f"{self._key} order"
        async with self._lock:
            kept = await self._store.recall(key)
            last = _Change(0.0, "") if kept is None else msgspec.json.decode(kept, type=_Change)
            if issued_at < last.issued_at and request_id != last.request_id:
                text = (
                    "A newer change of the genome arrived before this one, so nothing "
                    "was changed. Read the genome, and send the change again."
                )
                raise ToolFailure(ErrorKind.CONFLICT, text)
            if request_id != last.request_id:
                change = _Change(issued_at, request_id)
                await self._store.remember(key, msgspec.json.encode(change))

    async def check_order_number(self, number: int) -> None:
        """Raise `ToolFailure` for a change with a lower number than one that arrived before it.

        A roll-out numbers its changes, so that one that was held back, or that a fenced
        orchestrator sent, does not undo a rollback.
        """
        key = f"{self._key} order number"
        async with self._lock:
            kept = await self._store.recall(key)
            last = 0 if kept is None else msgspec.json.decode(kept, type=int)
            if number < last:
                text = (
                    f"The change has the order number {number}, and one with {last} arrived before "
                    "it, so nothing was changed."
                )
                raise ToolFailure(ErrorKind.CONFLICT, text)
            if number > last:
                await self._store.remember(key, msgspec.json.encode(number))

    async def update(self, patch: Mapping[str, JSON]) -> Genome:
        """Apply a patch; raise `ToolFailure`, and change nothing, if any part is invalid.

        A patch without effect creates no version, so that a patch may arrive twice.
        """
        async with self._lock:
            now = self.current()
            new = merged(now, patch, self._first, EDGE_TUNABLES)
            self._check(now, new)
            return now if _same(now, new) else await self._keep(replace(new, restored=None))

    def _check(self, now: Genome, new: Genome) -> None:
        """Refuse what the configuration of the device does not allow.

        Earlier releases kept limits above the configured ones: without effect, they hinder no
        other change.
        """
        known = self._skills()
        check_skills(new, known)
        check_new_skills(new, known)
        check_models(new, self._models)
        if (size := len(msgspec.json.encode(new.content()))) > MAX_EDGE_GENOME_BYTES:
            raise genome_refused(
                f"The genome would have {size} bytes, more than the {MAX_EDGE_GENOME_BYTES} that "
                "an edge can report: shorten its texts. Nothing was changed."
            )
        changed = {
            name: limit
            for name, limit in self._limits.items()
            if getattr(new, name) != getattr(now, name)
        }
        check_limits(new, changed)

    async def roll_back(self, to: int | None = None) -> Genome:
        """Roll back to a version, or to the previous one; repeated rollbacks go further back."""
        async with self._lock:
            kept = await self._kept()
            number = self._before(kept) if to is None else to
            if number != 0 and number not in kept:
                text = f"The genome has no version {number}; available versions: {_named(kept)}."
                raise ToolFailure(ErrorKind.INVALID_PARAMS, text)
            old = _read(number, kept[number]) if number else self._first
            now = self._current
            if to is not None and now is not None and _same(now, old):
                return now
            return await self._keep(replace(old, restored=number))

    async def history(self) -> list[Genome]:
        """All versions, from the configured one to the newest."""
        kept = await self._kept()
        return [self._first, *(_read(number, kept[number]) for number in sorted(kept))]

    async def _kept(self) -> dict[int, bytes]:
        return {version.n: version.value for version in await self._store.versions(self._key)}

    def _before(self, kept: Mapping[int, bytes]) -> int:
        """The version before the current one, or before the newest if that cannot be read."""
        now = self._current
        here = max(kept, default=0)
        if now is not None:
            here = now.version if now.restored is None else now.restored
        if here == 0:
            text = "There is no earlier version of the genome to roll back to."
            raise ToolFailure(ErrorKind.INVALID_PARAMS, text)
        return max((number for number in kept if number < here), default=0)

    async def _keep(self, genome: Genome) -> Genome:
        value = msgspec.json.encode(replace(genome, version=0))
        number = await self._store.remember_version(self._key, value)
        self._current = _read(number, value)
        return self._current


def _same(one: Genome, other: Genome) -> bool:
    """Whether two genomes have the same settings."""
    return all(getattr(one, key) == getattr(other, key) for key in EDGE_TUNABLES)


def _named(kept: Mapping[int, bytes]) -> str:
    return f"0 and {min(kept)} to {max(kept)}" if kept else "only 0"


def _read(number: int, value: bytes) -> Genome:
    try:
        stored: JSON = msgspec.json.decode(value)
        if is_object(stored):
            stored = {**EDGE_DEFAULTS.content(), **stored}
            stored.pop("strategy", None)  # of older releases; nothing ever read it
        return replace(msgspec.convert(stored, Genome), version=number)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as problem:
        raise GenomeUnreadable(number, str(problem)) from None


class GenomeTimeouts(OfferStep):
    """Limits the time of every tool to what the genome allows a call."""

    def __init__(self, genome: Callable[[], Genome]) -> None:
        self._genome = genome

    def version(self) -> object:
        """The genome: offers change when it changes."""
        return self._genome()

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """The tools, with their timeouts limited."""
        limit = self._genome().call_seconds
        if limit is None:
            return tools
        return [
            replace(
                tool, timeout=min(tool.timeout, limit), max_timeout=min(tool.max_timeout, limit)
            )
            for tool in tools
        ]
