"""The entries of a lineage: canonical JSON that names the hash of the entry before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.canonical_json import canonical
from evoclaw.core.errors import ToolFailure
from evoclaw.core.genome import Genome
from evoclaw.core.genome_patches import genome_refused
from evoclaw.core.messages import JSON, is_object
from evoclaw.evolution.canary import Canary
from evoclaw.store.genomes import StoredEntry

EntryKind: TypeAlias = Literal[
    "change", "rollback", "evaluation", "opening", "proposal", "verdict", "campaign"
]


class LineageEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a lineage: a version of the genome, or an evaluation of one."""

    v: Literal[1]
    """The format of the entry."""
    agent: str
    """Whose genome it is."""
    number: int
    """Its position, from 1."""
    prev: str
    """The hash of the entry before it; empty for the first."""
    at: float
    """Unix time, seconds."""
    key: str
    """The public key that signed it."""
    kind: EntryKind
    """What it records; an `opening` is one of the sealed cases; a `proposal` is a genome that is
    not used until verdicts on it allow that; a `campaign` is a round of proposers that has ended,
    or a person's request for one, as its `scores` say."""
    digest: str
    """That of the genome; empty for the configuration."""
    by: str
    """Who proposed it: a user, or a program."""
    version: int | None = None
    """The version that it makes; an evaluation makes none."""
    parent: str | None = None
    """The digest of the genome that was current before."""
    restored: int | None = None
    """The version that a rollback restored."""
    genome: dict[str, JSON] = {}
    """What the genome sets; the rest is as configured."""
    reason: str = ""
    """Why, for people."""
    runs: tuple[str, ...] = ()
    """The runs that are the reason."""
    scores: dict[str, JSON] = {}
    """The result of an evaluation, or the evidence of a verdict."""
    candidate: int | None = None
    """The number of the proposal that a verdict is on, or that a change promotes, or that a
    rollback takes back."""
    stage: str = ""
    """The stage of the gate that a verdict is of."""
    passed: bool | None = None
    """What the verdict is; null: the stage has started and has no verdict yet."""
    untrusted: bool = False
    """Whether a proposal contains text of untrusted origin: only a person can approve it."""


OnEntry: TypeAlias = Callable[[LineageEntry], Awaitable[None]]
"""Receives an entry that was added, for the audit."""


async def ignore_entry(entry: LineageEntry) -> None:
    """Audit nothing."""


def entry_hash(entry: LineageEntry) -> str:
    """The hash that identifies an entry; the next one names it."""
    return sha256(canonical(msgspec.json.decode(msgspec.json.encode(entry)))).hexdigest()


def edge_lineage(edge_id: str) -> str:
    """The name of the lineage of an edge: an agent may have the same name as the edge."""
    return f"edge:{edge_id}"


def read_entry(stored: StoredEntry) -> LineageEntry:
    """The content of a stored entry."""
    return msgspec.json.decode(stored.body, type=LineageEntry)


def genome_of(entry: LineageEntry) -> Genome:
    """The genome of an entry."""
    found = msgspec.convert(entry.genome, Genome)
    return replace(found, version=entry.version or 0, restored=entry.restored)


def edge_versions(
    entries: Sequence[LineageEntry], configured: Genome, current: Genome
) -> list[Genome]:
    """All versions of the genome of an edge, with the numbers of its lineage; the last is current.

    Version 0 is what the edge is `configured` with. A current genome that the lineage does not
    end with was not recorded: it has the number that `record_edge` gives it at the next change.
    """
    versions = [
        replace(configured, version=0, restored=None),
        *(genome_of(entry) for entry in entries if entry.version is not None),
    ]
    if versions[-1].digest != current.digest:
        versions.append(replace(current, version=len(versions), restored=None))
    return versions


def version_before(versions: Sequence[Genome]) -> Genome:
    """The version of an edge before the last one; repeated rollbacks go further back.

    What an edge was found with is a version like its configuration: the same content is not
    earlier. Raises `ToolFailure` if there is none.
    """
    current = versions[-1]
    here = current.version if current.restored is None else current.restored
    earlier = [old for old in versions[:here] if old.digest != current.digest]
    if not earlier:
        raise no_earlier_version()
    return earlier[-1]


def no_earlier_version() -> ToolFailure:
    """The error for a rollback from the first version."""
    return genome_refused("There is no earlier version of the genome to roll back to.")


def canary_of(entries: Sequence[LineageEntry]) -> Canary | None:
    """The candidate whose last verdict says that its canary stage has started and is open."""
    found: dict[int, Canary] = {}
    for entry in entries:
        if entry.version is not None:
            found.clear()  # a new current genome ends every canary
        elif entry.kind == "verdict" and entry.candidate is not None:
            found.pop(entry.candidate, None)
            share = entry.scores.get("share")
            if entry.stage == "canary" and entry.passed is None and isinstance(share, int | float):
                found[entry.candidate] = Canary(entry.digest, float(share))
    return next(iter(found.values()), None)


def changes_between(old: Genome, new: Genome) -> dict[str, JSON]:
    """The merge patch that turns one genome into another."""
    return _patch(old.content(), new.content())


def _patch(old: Mapping[str, JSON], new: Mapping[str, JSON]) -> dict[str, JSON]:
    found: dict[str, JSON] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if is_object(value) and is_object(before):
            if inner := _patch(before, value):
                found[key] = inner
        elif key not in old or value != before:
            found[key] = value
    return found
