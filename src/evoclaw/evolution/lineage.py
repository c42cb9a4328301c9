"""The lineage of an agent's genome: every version with its parent, reason and signature.

An entry is canonical JSON. It names the hash of the entry before it and is signed by the
orchestrator that wrote it, so `evoclaw/verify.py` can check an exported lineage offline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from evoclaw.core.canonical_json import canonical
from evoclaw.core.errors import EvoClawError
from evoclaw.core.genome import AGENT_TUNABLES, CONFIGURED, Genome
from evoclaw.core.genome_patches import genome_refused, merged
from evoclaw.core.messages import JSON
from evoclaw.evolution.canary import Canary
from evoclaw.evolution.lineage_entries import (
    EntryKind,
    LineageEntry,
    canary_of,
    edge_lineage,
    genome_of,
    no_earlier_version,
    read_entry,
)
from evoclaw.store.genomes import GenomeChanged, GenomeStore, LineageHead, StoredEntry

CURRENT_CACHE_S = 2.0
"""Seconds for which an orchestrator uses the versions it knows, though another process that shares
the database may have changed them."""
MAX_CACHED_GENOMES = 256

Check: TypeAlias = Callable[[str, Genome], None]
"""Refuses a genome that the configuration of an agent does not allow, with `ToolFailure`."""
Sign: TypeAlias = Callable[[bytes], str]


class GenomeNotFound(EvoClawError):
    """An agent has no genome of that version or content."""

    def __init__(self, agent: str, which: str) -> None:
        super().__init__(
            f"agent {agent!r} has no genome {which}; see `evoclaw genome history {agent}`"
        )
        self.agent = agent


class SealedOpened(EvoClawError):
    """The sealed cases were opened for this release before."""

    def __init__(self, agent: str, release: str, by: str) -> None:
        super().__init__(
            f"{by} has opened the sealed cases of {agent!r} for the release {release!r} already; "
            "they are for one evaluation of each release"
        )


class GenomeLineage:
    """The genomes of the orchestrator's agents: their current versions and their lineages."""

    def __init__(
        self,
        store: GenomeStore,
        key: str,
        sign: Sign,
        *,
        check: Check = lambda agent, genome: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Choose the parts.

        Args:
            store: Where the lineages are.
            key: The public key of this orchestrator.
            sign: Signs an entry with it.
            check: Refuses a genome that an agent's configuration does not allow.
            clock: The time in seconds since 1970.
            monotonic: The monotonic time in seconds.
        """
        self._store, self._key, self._sign, self._check = store, key, sign, check
        self._clock, self._monotonic = clock, monotonic
        self._current: Mapping[str, str] = {}
        self._read_at: float | None = None
        self._canaries: dict[str, tuple[float, int, Canary | None]] = {}
        self._found: dict[tuple[str, str], Genome] = {}

    async def current(self, agent: str, session: str = "") -> str:
        """The digest of the genome that a new session gets; empty for the configuration.

        A share of the sessions gets the genome of a candidate that is at its canary stage. Without
        a session, it is the current genome.
        """
        now = self._monotonic()
        if self._read_at is None or now - self._read_at > CURRENT_CACHE_S:
            self._current, self._read_at = await self._store.current(), now
        digest = self._current.get(agent, "")
        canary = await self._canary(agent) if session else None
        return canary.digest if canary is not None and canary.has(session) else digest

    async def _canary(self, agent: str) -> Canary | None:
        """The candidate that some sessions use; the lineage is read only after a new entry."""
        read_at = self._read_at or 0.0
        at, known, canary = self._canaries.get(agent, (-1.0, 0, None))
        if at != read_at:
            number = await self.last_number(agent)
            if number != known:
                canary = canary_of(await self.history(agent))
            self._canaries[agent] = read_at, number, canary
        return canary

    async def last_number(self, agent: str) -> int:
        """The number of the last entry; 0 without one."""
        return await self._store.last_number(agent)

    async def find(self, agent: str, digest: str) -> Genome:
        """The genome of this content; raises `GenomeNotFound`."""
        if not digest:
            return CONFIGURED
        if (known := self._found.get((agent, digest))) is not None:
            return known
        stored = await self._store.by_digest(agent, digest)
        if stored is None:
            raise GenomeNotFound(agent, digest[:12])
        genome = genome_of(read_entry(stored))
        if len(self._found) >= MAX_CACHED_GENOMES:
            self._found.clear()
        self._found[agent, digest] = genome
        return genome

    async def history(self, agent: str) -> Sequence[LineageEntry]:
        """The whole lineage, the oldest entry first."""
        return [read_entry(stored) for stored in await self._store.entries(agent)]

    async def version(self, agent: str, version: int | None = None) -> Genome:
        """A version of the genome, or the current one; raises `GenomeNotFound`."""
        entries = [entry for entry in await self.history(agent) if entry.version is not None]
        if version == 0 or (version is None and not entries):
            return CONFIGURED
        chosen = entries[-1:] if version is None else [e for e in entries if e.version == version]
        if not chosen:
            raise GenomeNotFound(agent, f"version {version}")
        return genome_of(chosen[0])

    async def change(
        self,
        agent: str,
        patch: Mapping[str, JSON],
        *,
        by: str,
        reason: str = "",
        runs: Sequence[str] = (),
        expected: int | None = None,
    ) -> Genome:
        """Make a new version by a patch; a patch without effect makes none.

        Raises `ToolFailure` for a patch that is not allowed, and `GenomeNotFound` if `expected`
        is not the current version: another change came first.
        """

        def make(head: LineageHead) -> StoredEntry | None:
            now = _current_of(head)
            check_expected(now, expected)
            new = replace(merged(now, patch, CONFIGURED, AGENT_TUNABLES), restored=None)
            self._check(agent, new)
            if new.digest == now.digest:
                return None
            return self._entry(agent, head, new, "change", by, reason, runs)

        return await self._append(agent, make)

    async def roll_back(
        self,
        agent: str,
        to: int | None = None,
        *,
        by: str,
        reason: str = "",
        candidate: int | None = None,
        after: int | None = None,
    ) -> Genome:
        """Restore a version, or the one before the current one, as a new version.

        `candidate` is the promoted proposal that it takes back; `after` is as in `add_verdict`.
        The configuration decides at use what a restored genome may still do.
        """
        if to is None:
            to = _previous(await self.history(agent))
        wanted = to

        def make(head: LineageHead) -> StoredEntry | None:
            if after is not None:
                self._check_last(agent, head, after)
            if wanted and head.restored is None:
                raise GenomeNotFound(agent, f"version {wanted}")
            old = CONFIGURED if head.restored is None else genome_of(read_entry(head.restored))
            if old.digest == _current_of(head).digest:
                return None
            new = replace(old, restored=wanted)
            return self._entry(agent, head, new, "rollback", by, reason, (), candidate=candidate)

        return await self._append(agent, make, wanted)

    async def add_evaluation(
        self, agent: str, genome: Genome, scores: dict[str, JSON], *, by: str
    ) -> LineageEntry:
        """Record the result of an evaluation; the current version stays."""

        def make(head: LineageHead) -> StoredEntry:
            return self._entry(agent, head, genome, "evaluation", by, "", (), scores)

        added = await self._store.append(agent, make)
        assert added is not None
        return read_entry(added)

    async def propose(
        self,
        agent: str,
        patch: Mapping[str, JSON],
        *,
        by: str,
        reason: str = "",
        runs: Sequence[str] = (),
        untrusted: bool = False,
        evidence: dict[str, JSON] | None = None,
        after: int | None = None,
    ) -> LineageEntry | None:
        """Record a candidate: a patch of the current genome, which stays current.

        None if the patch changes nothing. Raises `ToolFailure` for a patch that is not allowed, and
        `GenomeChanged` as `add_verdict` does if `after` is given.
        """

        def make(head: LineageHead) -> StoredEntry | None:
            if after is not None:
                self._check_last(agent, head, after)
            now = _current_of(head)
            new = replace(merged(now, patch, CONFIGURED, AGENT_TUNABLES), restored=None)
            self._check(agent, new)
            if new.digest == now.digest:
                return None
            return self._entry(
                agent, head, new, "proposal", by, reason, runs, evidence, untrusted=untrusted
            )

        added = await self._store.append(agent, make)
        return None if added is None else read_entry(added)

    async def add_verdict(
        self,
        agent: str,
        candidate: LineageEntry,
        stage: str,
        *,
        passed: bool | None,
        after: int,
        by: str,
        reason: str = "",
        evidence: dict[str, JSON] | None = None,
    ) -> LineageEntry:
        """Record the verdict of one stage of the gate on a candidate.

        Raises `GenomeChanged` unless `after` is the number of the last entry of the lineage: what
        the verdict rests on may be out of date.
        """

        def make(head: LineageHead) -> StoredEntry:
            self._check_last(agent, head, after)
            return self._entry(
                agent, head, genome_of(candidate), "verdict", by, reason, (), evidence,
                candidate=candidate.number, stage=stage, passed=passed,
            )  # fmt: skip

        added = await self._store.append(agent, make)
        assert added is not None
        self._read_at = None
        return read_entry(added)

    async def add_campaign(
        self,
        agent: str,
        *,
        by: str,
        reason: str,
        evidence: dict[str, JSON],
        after: int | None = None,
    ) -> LineageEntry:
        """Record that a round of proposers has ended, and what it spent, or that one is requested.

        Raises `GenomeChanged` as `add_verdict` does if `after` is given.
        """

        def make(head: LineageHead) -> StoredEntry:
            if after is not None:
                self._check_last(agent, head, after)
            return self._entry(agent, head, _current_of(head), "campaign", by, reason, (), evidence)

        added = await self._store.append(agent, make)
        assert added is not None
        return read_entry(added)

    async def promote(
        self, agent: str, candidate: LineageEntry, *, after: int, by: str, reason: str = ""
    ) -> Genome:
        """Make a candidate the current genome; raises `GenomeChanged` as `add_verdict` does."""

        def make(head: LineageHead) -> StoredEntry:
            self._check_last(agent, head, after)
            new = genome_of(candidate)
            self._check(agent, new)
            return self._entry(
                agent, head, new, "change", by, reason, candidate.runs, candidate=candidate.number
            )

        return await self._append(agent, make)

    async def open_sealed(
        self, agent: str, genome: Genome, release: str, *, by: str
    ) -> LineageEntry:
        """Record that the sealed cases are opened for a release, before they are.

        Raises `SealedOpened` if they were opened for that release before, and `GenomeChanged` if
        another entry was added at the same moment.
        """
        entries = await self.history(agent)
        for entry in entries:
            if entry.kind == "opening" and entry.scores.get("release") == release:
                raise SealedOpened(agent, release, entry.by)

        def make(head: LineageHead) -> StoredEntry:
            self._check_last(agent, head, len(entries))  # perhaps another opening came first
            return self._entry(agent, head, genome, "opening", by, "", (), {"release": release})

        added = await self._store.append(agent, make)
        assert added is not None
        return read_entry(added)

    async def record_edge(
        self,
        edge_id: str,
        before: Genome,
        genome: Genome,
        *,
        by: str,
        reason: str = "",
        runs: Sequence[str] = (),
        restored: int | None = None,
        scores: dict[str, JSON] | None = None,
    ) -> Genome:
        """Record what the genome of an edge is after a change, as the edge confirmed it.

        What the edge had before is recorded first, if it is not the end of the lineage. An earlier
        content is a rollback, of the version `restored` if that has this content. A repeated
        change, with the same reason, adds nothing, or an evaluation if it has scores.

        Returns the genome with its number in the lineage; the edge numbers it in its own way.
        """
        name = edge_lineage(edge_id)

        def make_before(head: LineageHead) -> StoredEntry | None:
            last = None if head.current is None else read_entry(head.current)
            if last is not None and (last.digest, last.reason) == (genome.digest, reason):
                return None
            if _current_of(head).digest == before.digest:
                return None
            found = replace(before, restored=None)
            return self._entry(name, head, found, "change", edge_id, "found on the edge", ())

        # The roll-out or the request that changed the edge is in the audit.
        await self._store.append(name, make_before, to_audit=False)
        versions = [e for e in await self.history(name) if e.version is not None]
        earlier = [entry.version for entry in versions if entry.digest == genome.digest]

        def make(head: LineageHead) -> StoredEntry | None:
            if _current_of(head).digest != genome.digest:
                kind = "rollback" if earlier else "change"
                old = restored if restored in earlier else next(reversed(earlier), None)
                new = replace(genome, restored=old)
                return self._entry(name, head, new, kind, by, reason, runs, scores)
            last = None if head.last is None else read_entry(head.last)
            if not scores or (last is not None and last.scores == scores):
                return None
            return self._entry(name, head, genome, "evaluation", by, reason, (), scores)

        added = await self._store.append(name, make, to_audit=False)
        if added is None or added.version is None:
            return await self.version(name)
        return genome_of(read_entry(added))

    async def export(self, agent: str) -> Sequence[dict[str, JSON]]:
        """The lineage as lines for `evoclaw/verify.py`."""
        return [
            {"type": "genome", "body": stored.body.decode(), "signature": stored.signature}
            for stored in await self._store.entries(agent)
        ]

    async def _append(
        self,
        agent: str,
        make: Callable[[LineageHead], StoredEntry | None],
        version: int | None = None,
    ) -> Genome:
        added = await self._store.append(agent, make, version=version)
        self._read_at = None
        return await self.version(agent) if added is None else genome_of(read_entry(added))

    def _check_last(self, agent: str, head: LineageHead, number: int) -> None:
        if (head.last.number if head.last else 0) != number:
            raise GenomeChanged(agent)

    def _entry(
        self,
        agent: str,
        head: LineageHead,
        genome: Genome,
        kind: EntryKind,
        by: str,
        reason: str,
        runs: Sequence[str],
        scores: dict[str, JSON] | None = None,
        *,
        candidate: int | None = None,
        stage: str = "",
        passed: bool | None = None,
        untrusted: bool = False,
    ) -> StoredEntry:
        is_version = kind in ("change", "rollback")
        current = _current_of(head)
        entry = LineageEntry(
            v=1, agent=agent, number=head.last.number + 1 if head.last else 1,
            prev=head.last.hash if head.last else "", at=self._clock(), key=self._key, kind=kind,
            digest=genome.digest, by=by,
            version=current.version + 1 if is_version else None,
            parent=current.digest if is_version or kind == "proposal" else None,
            restored=genome.restored if is_version else None,
            genome=genome.content(), reason=reason, runs=tuple(runs), scores=scores or {},
            candidate=candidate, stage=stage, passed=passed, untrusted=untrusted,
        )  # fmt: skip
        body = canonical(msgspec.json.decode(msgspec.json.encode(entry)))
        return StoredEntry(
            agent, entry.number, entry.version, entry.digest, sha256(body).hexdigest(),
            self._sign(body), body,
        )  # fmt: skip


def check_expected(now: Genome, expected: int | None) -> None:
    """Refuse a change, with `ToolFailure`, if its caller saw another version than the current."""
    if expected is not None and expected != now.version:
        raise genome_refused(
            f"The current version is {now.version}, not {expected}: read the genome, and "
            "send the change again. Nothing was changed."
        )


def _current_of(head: LineageHead) -> Genome:
    return CONFIGURED if head.current is None else genome_of(read_entry(head.current))


def _previous(entries: Sequence[LineageEntry]) -> int:
    """The version before the current one; repeated rollbacks go further back."""
    versions = [entry for entry in entries if entry.version is not None]
    if not versions:
        raise no_earlier_version()
    last = versions[-1]
    here = last.version if last.restored is None else last.restored
    if not here:
        raise no_earlier_version()
    return here - 1
