"""The genome: an agent's remotely tunable settings, validated, versioned, and reversible.

A change is a merge patch: objects are merged, null goes back to the default. A patch that is wrong
in one place changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import fields, replace

from evoclaw.core.encoding import is_deeper
from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, is_object
from evoclaw.core.pipeline import OfferStep
from evoclaw.core.tools import Tool
from evoclaw.store.calls.journal import Journal

MAX_STRATEGY_BYTES = 16 * 1024
MAX_STRATEGY_DEPTH = 32
"""Nested objects and lists."""
SkillName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]


SkillTools: TypeAlias = Callable[[], Mapping[str, frozenset[str]]]
"""The skills of a device, and the tools of each."""


def no_skills() -> Mapping[str, frozenset[str]]:
    """The skills of a device without any."""
    return {}


class Genome(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent's tunables. Kept in full: a default that changes later changes no old version."""

    prompt: Annotated[str, Meta(max_length=16_000)] = ""
    """Instructions at the start of a prompt's run."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """None is the model's default."""
    max_turns: Annotated[int, Meta(ge=1, le=100)] = 10
    call_seconds: Annotated[float, Meta(gt=0, le=3600)] | None = None
    """The maximum seconds of a call; None is the tool's own limit."""
    run_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 3600.0
    """The maximum seconds of a prompt's run."""
    concurrency: Annotated[int, Meta(ge=1, le=64)] | None = None
    """Commands served at the same time; None is the device's own limit, which it never exceeds."""
    skills: Annotated[tuple[SkillName, ...], Meta(max_length=200)] | None = None
    """The enabled skills; None is all."""
    strategy: dict[str, JSON] = {}
    """Settings for the agent's own logic; nothing here reads them."""
    version: int = 0
    """0 is the configuration of the device."""
    restored: int | None = None
    """The version that a rollback restored."""


GENOME_RULES: Mapping[str, str] = {  # the same as text, for each setting
    "prompt": "text of at most 16000 characters",
    "temperature": "a number from 0 to 2, or null",
    "max_turns": "a whole number from 1 to 100",
    "call_seconds": "a number above 0 and up to 3600, or null",
    "run_seconds": "a number above 0 and up to 86400",
    "concurrency": "a whole number from 1 to 64, or null",
    "skills": "a list of at most 200 names, or null for all",
    "strategy": f"an object of at most {MAX_STRATEGY_BYTES} bytes as JSON, "
    f"nested {MAX_STRATEGY_DEPTH} deep at most",
}


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
    ) -> None:
        """`first` is version 0: the configuration of the device. `skills` are those it has."""
        self._store, self._key, self._skills = store, key, skills
        self._first = replace(first or Genome(), version=0, restored=None)
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

    async def update(self, patch: Mapping[str, JSON]) -> Genome:
        """Apply a patch; raise `ToolFailure`, and change nothing, if any part is invalid.

        A patch without effect creates no version, so that a patch may arrive twice.
        """
        async with self._lock:
            now = self.current()
            new = merged(now, patch, self._first)
            self._check_skills(new)
            return now if _same(now, new) else await self._keep(replace(new, restored=None))

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

    def _check_skills(self, genome: Genome) -> None:
        """Refuse skills that the device does not have: to enable them would do nothing."""
        known = self._skills()
        if unknown := [name for name in genome.skills or () if name not in known]:
            has = ", ".join(sorted(known)) or "none"
            raise _refused(
                f"This agent has no skill {', '.join(map(repr, unknown))}; its skills: {has}. "
                "Nothing was changed."
            )

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


def merged(genome: Genome, patch: Mapping[str, JSON], first: Genome) -> Genome:
    """A genome with a patch applied; null means the value in `first`."""
    kinds = {field.name: field.type for field in fields(Genome) if field.name in GENOME_RULES}
    changes: dict[str, JSON] = {}
    for key, value in patch.items():
        if key not in kinds:
            raise _refused(
                f"{key[:80]!r} is not part of the genome; its keys are {', '.join(GENOME_RULES)}."
            )
        if value is None:
            changes[key] = getattr(first, key)
            continue
        try:
            plain = msgspec.json.decode(msgspec.json.encode(value))
            if plain is None:
                raise ValueError("not a number")
            if key == "strategy":
                plain = _merged_strategy(genome.strategy, plain)
            changes[key] = msgspec.convert(plain, kinds[key])
        except (ValueError, TypeError, RecursionError):
            raise _refused(f"{key!r} must be {GENOME_RULES[key]}. Nothing was changed.") from None
    return replace(genome, **changes)


def _refused(text: str) -> ToolFailure:
    return ToolFailure(ErrorKind.INVALID_PARAMS, text)


def _same(one: Genome, other: Genome) -> bool:
    """Whether two genomes have the same settings."""
    return all(getattr(one, key) == getattr(other, key) for key in GENOME_RULES)


def _named(kept: Mapping[int, bytes]) -> str:
    return f"0 and {min(kept)} to {max(kept)}" if kept else "only 0"


def _read(number: int, value: bytes) -> Genome:
    try:
        return replace(msgspec.json.decode(value, type=Genome), version=number)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise GenomeUnreadable(number, str(problem)) from None


def _merged_strategy(old: dict[str, JSON], patch: JSON) -> dict[str, JSON]:
    """Merge by RFC 7396, with a depth limit; raise `ValueError` beyond it."""
    if not is_object(patch) or is_deeper(patch, MAX_STRATEGY_DEPTH):
        raise ValueError("no object, or a deep one")
    new = _merge(old, patch)
    if len(msgspec.json.encode(new)) > MAX_STRATEGY_BYTES:
        raise ValueError("too long")
    return new


def _merge(old: JSON, patch: dict[str, JSON]) -> dict[str, JSON]:
    new: dict[str, JSON] = dict(old) if is_object(old) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = _merge(new.get(key), value) if is_object(value) else value
    return new


class GenomeSkills(OfferStep):
    """Offers the tools of a skill only if the genome enables the skill."""

    def __init__(self, genome: Callable[[], Genome], skills: SkillTools) -> None:
        self._genome, self._skills = genome, skills

    def version(self) -> object:
        """The enabled skills: offers change when they change."""
        return self._genome().skills

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """The tools without those of disabled skills."""
        enabled = self._genome().skills
        if enabled is None:
            return tools
        hidden = {
            name
            for skill, names in self._skills().items()
            if skill not in enabled
            for name in names
        }
        return [tool for tool in tools if tool.name not in hidden]


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
