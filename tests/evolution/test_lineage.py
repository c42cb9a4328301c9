"""The lineage of a genome: versions that are never changed, signed, and checked by anyone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from evoclaw import verify
from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.genome import CONFIGURED, Genome, ToolText
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.evolution.lineage import GenomeLineage, GenomeNotFound, SealedOpened
from evoclaw.evolution.lineage_entries import changes_between, edge_versions
from evoclaw.store.genomes import SCHEMA, GenomeStore
from evoclaw.trust.receipts import DeviceKey
from tests.support.databases import Place

KEY, OTHER = DeviceKey(bytes(range(32))), DeviceKey(bytes(range(1, 33)))


@asynccontextmanager
async def lineage_in(
    place: Place, key: DeviceKey = KEY, **settings: Any
) -> AsyncGenerator[GenomeLineage]:
    database = await place.open(SCHEMA)
    ticks = count(1_000)
    try:
        yield GenomeLineage(
            GenomeStore(database),
            key.public_key,
            key.sign_genome,
            clock=lambda: float(next(ticks)),
            **settings,
        )
    finally:
        await database.close()


def problems(lines: list[Any], key: str = "", heads: dict[str, str] | None = None) -> list[str]:
    data = "\n".join(json.dumps(line) for line in lines).encode()
    bundle = verify.read_bundle(data)
    if key:
        bundle.keys["helper"] = (key, "given")
    return verify.verify(bundle, heads or {})[1]


async def test_of_two_openings_of_sealed_cases_at_the_same_moment_one_is_refused(
    place: Place,
) -> None:
    async with lineage_in(place) as lineage:
        opened = await asyncio.gather(
            *(lineage.open_sealed("helper", CONFIGURED, "1.0", by=name) for name in ("ann", "bob")),
            return_exceptions=True,
        )
        refused = [problem for problem in opened if isinstance(problem, EvoClawError)]
        assert len(refused) == 1, opened
        with pytest.raises(SealedOpened, match="already"):
            await lineage.open_sealed("helper", CONFIGURED, "1.0", by="cid")
        assert [entry.kind for entry in await lineage.history("helper")] == ["opening"]


async def test_versions_have_parents_reasons_and_survive_a_restart(place: Place) -> None:
    async with lineage_in(place) as lineage:
        assert await lineage.current("helper") == ""
        assert await lineage.version("helper") == CONFIGURED
        first = await lineage.change("helper", {"prompt": "Be brief."}, by="ann", reason="long")
        assert (first.version, first.prompt) == (1, "Be brief.")
        assert await lineage.current("helper") == first.digest, "at once"
        same = await lineage.change("helper", {"prompt": "Be brief."}, by="bob")
        assert same == first, "a patch without effect makes no version"
        await lineage.change("helper", {"max_turns": 3}, by="ann", runs=["r1", "r2"])
    async with lineage_in(place) as lineage:
        one, two = await lineage.history("helper")
        assert (one.version, one.parent, one.by, one.reason) == (1, "", "ann", "long")
        assert (two.version, two.parent, two.runs) == (2, first.digest, ("r1", "r2"))
        assert two.genome == {"prompt": "Be brief.", "max_turns": 3}
        assert await lineage.find("helper", first.digest) == first
        assert await lineage.version("helper", 1) == first
        assert await lineage.history("other") == []


async def test_a_rollback_is_a_new_version_and_repeated_ones_go_further_back(place: Place) -> None:
    async with lineage_in(place) as lineage:
        for turns in (1, 2, 3):
            await lineage.change("helper", {"max_turns": turns}, by="ann")
        back = await lineage.roll_back("helper", 1, by="ann", reason="worse")
        assert (back.max_turns, back.version, back.restored) == (1, 4, 1)
        assert await lineage.roll_back("helper", 1, by="ann") == back, "twice is once"
        await lineage.change("helper", {"max_turns": 4}, by="ann")
        found = [(await lineage.roll_back("helper", by="ann")).max_turns for _ in range(3)]
        assert found == [1, 3, 2]
        assert (await lineage.roll_back("helper", 0, by="ann")).content() == {}
        assert await lineage.current("helper") == ""
        with pytest.raises(GenomeNotFound, match="version 99"):
            await lineage.roll_back("helper", 99, by="ann")


async def test_without_a_version_there_is_nothing_to_roll_back_to(place: Place) -> None:
    async with lineage_in(place) as lineage:
        with pytest.raises(ToolFailure, match="no earlier version"):
            await lineage.roll_back("helper", by="ann")
        await lineage.change("helper", {"max_turns": 1}, by="ann")
        assert (await lineage.roll_back("helper", by="ann")).content() == {}
        with pytest.raises(ToolFailure, match="no earlier version"):
            await lineage.roll_back("helper", by="ann")


async def test_what_is_refused_changes_nothing(place: Place) -> None:
    def check(agent: str, genome: Genome) -> None:
        if genome.models:
            raise ToolFailure(ErrorKind.INVALID_PARAMS, "no such model")

    async with lineage_in(place, check=check) as lineage:
        await lineage.change("helper", {"max_turns": 1}, by="ann")
        wrong: list[dict[str, Any]] = [{"policy": "off"}, {"max_turns": 0}, {"models": ["x"]}]
        for patch in wrong:
            with pytest.raises(ToolFailure):
                await lineage.change("helper", patch, by="ann")
        with pytest.raises(ToolFailure, match="current version is 1, not 0"):
            await lineage.change("helper", {"max_turns": 2}, by="ann", expected=0)
        assert len(await lineage.history("helper")) == 1


async def test_changes_at_the_same_time_are_all_in_one_chain(place: Place) -> None:
    async with lineage_in(place) as one, lineage_in(place, OTHER) as two:
        changes = (
            one.change("helper", {"prompt": "x"}, by="ann"),
            two.change("helper", {"notes": ["n"]}, by="ann"),
            one.change("helper", {"temperature": 1}, by="ann"),
            two.change("helper", {"max_turns": 2}, by="ann"),
        )
        done = await asyncio.gather(*changes, return_exceptions=True)
        stored = sum(isinstance(result, Genome) for result in done)
        assert stored >= 1
        assert len(await one.history("helper")) == stored, "the others were told to try again"
        assert problems(list(await one.export("helper"))) == []
        assert len((await one.version("helper")).content()) == stored


async def test_another_orchestrator_sees_a_change_within_seconds(place: Place) -> None:
    now = [0.0]
    async with lineage_in(place) as one, lineage_in(place, monotonic=lambda: now[0]) as two:
        assert await two.current("helper") == ""
        changed = await one.change("helper", {"max_turns": 1}, by="ann")
        now[0] = 2.1
        if not place.is_file:  # a file has one process
            assert await two.current("helper") == changed.digest


async def test_an_evaluation_is_an_entry_that_makes_no_version(place: Place) -> None:
    async with lineage_in(place) as lineage:
        first = await lineage.change("helper", {"max_turns": 1}, by="ann")
        await lineage.add_evaluation("helper", first, {"passed": 3, "attempts": 4}, by="ann")
        second = await lineage.change("helper", {"max_turns": 2}, by="ann")
        assert second.version == 2
        kinds = [(entry.kind, entry.version) for entry in await lineage.history("helper")]
        assert kinds == [("change", 1), ("evaluation", None), ("change", 2)]
        assert (await lineage.history("helper"))[1].scores == {"passed": 3, "attempts": 4}
        assert problems(list(await lineage.export("helper"))) == []


async def exported(place: Place) -> list[Any]:
    async with lineage_in(place) as lineage:
        await lineage.change("helper", {"prompt": "Ü", "temperature": 1.0}, by="ann")
        await lineage.change("helper", {"max_turns": 2, "prompt": None}, by="ann")
        await lineage.roll_back("helper", 1, by="ann")
        return list(await lineage.export("helper"))


async def test_an_exported_lineage_is_valid_offline(place: Place) -> None:
    lines = await exported(place)
    assert problems(lines) == []
    assert problems(lines, KEY.public_key) == []
    assert any("other than the given one" in p for p in problems(lines, OTHER.public_key))
    last = verify.read_bundle(json.dumps(lines).encode()).lineages["helper"][-1].hash
    assert problems(lines, heads={"helper": last}) == []
    assert problems(lines[:-1], heads={"helper": last}), "cut at the end"


def signed(body: dict[str, Any]) -> dict[str, Any]:
    text = verify.canonical(body)
    return {"type": "genome", "body": text, "signature": KEY.sign_genome(text.encode())}


@pytest.mark.parametrize(
    ("number", "change", "problem"),
    [
        (0, {"by": "eve"}, "the signature is wrong"),
        (1, {"genome": {"prompt": "evil"}}, "the signature is wrong"),
    ],
)
async def test_an_edited_entry_is_found(
    place: Place, number: int, change: dict[str, Any], problem: str
) -> None:
    lines = await exported(place)
    body = json.loads(lines[number]["body"]) | change
    lines[number]["body"] = verify.canonical(body)
    assert any(problem in found for found in problems(lines))


@pytest.mark.parametrize(
    ("number", "change", "problem"),
    [
        (1, {"digest": "00"}, "its digest is not that of its genome"),
        (1, {"version": 3}, "makes version 3, not 2"),
        (1, {"parent": ""}, "its parent is not the version before it"),
        (1, {"prev": ""}, "does not refer to the hash of the entry before it"),
        (1, {"number": 3}, "an entry is missing or repeated"),
        (2, {"restored": 2}, "is not the version that it claims to restore"),
    ],
)
async def test_a_signed_entry_that_contradicts_the_others_is_found(
    place: Place, number: int, change: dict[str, Any], problem: str
) -> None:
    lines = await exported(place)
    lines[number] = signed(json.loads(lines[number]["body"]) | change)
    assert any(problem in found for found in problems(lines)), problems(lines)


async def test_a_removed_or_swapped_entry_is_found(place: Place) -> None:
    lines = await exported(place)
    assert problems(lines[1:])
    assert problems([lines[0], lines[2]])
    assert problems([lines[1], lines[0], lines[2]])
    assert problems([*lines, lines[-1]])
    assert problems([{"type": "genome", "body": "{}", "signature": ""}])


def test_the_difference_of_two_genomes_is_a_merge_patch() -> None:
    old = Genome(prompt="a", max_turns=2, tools={"x": ToolText("1"), "y": ToolText("2")})
    new = Genome(prompt="b", temperature=0, tools={"x": ToolText("1", ("e",))})
    assert changes_between(old, new) == {
        "max_turns": None,
        "prompt": "b",
        "temperature": 0.0,
        "tools": {"y": None, "x": {"examples": ["e"]}},
    }
    assert changes_between(old, old) == {}


async def test_changes_that_an_edge_confirmed_are_a_lineage_of_its_own(place: Place) -> None:
    first = Genome(max_turns=10, run_seconds=3600.0)
    new = Genome(max_turns=3, run_seconds=3600.0, version=1)
    scores: dict[str, JSON] = {"rollout": "r1", "passed": 4, "attempts": 5}
    async with lineage_in(place) as lineage:
        await lineage.change("pi", {"prompt": "Hi."}, by="ann")
        for _ in range(2):  # a killed orchestrator does it again
            await lineage.record_edge("pi", first, new, by="ann", reason="r1")
        for _ in range(2):
            await lineage.record_edge("pi", first, new, by="ann", reason="r1", scores=scores)
        for _ in range(2):
            await lineage.record_edge("pi", new, first, by="ben", reason="r1: worse", scores=scores)
        entries = await lineage.history("edge:pi")
        assert [(e.kind, e.version, e.restored, e.digest, e.by) for e in entries] == [
            ("change", 1, None, first.digest, "pi"),
            ("change", 2, None, new.digest, "ann"),
            ("evaluation", None, None, new.digest, "ann"),
            ("rollback", 3, 1, first.digest, "ben"),
        ]
        lines = [*await lineage.export("edge:pi")]
        assert problems(lines) == []
        assert [entry.kind for entry in await lineage.history("pi")] == ["change"]


async def test_a_change_of_an_edge_has_its_runs_and_the_number_of_the_lineage(place: Place) -> None:
    first, new = Genome(max_turns=10), Genome(max_turns=3, version=41)
    async with lineage_in(place) as lineage:
        added = await lineage.record_edge("pi", first, new, by="ann", runs=("run-1",))
        assert (added.version, added.digest) == (2, new.digest)
        await lineage.record_edge("pi", new, first, by="ann")
        await lineage.record_edge("pi", first, new, by="ann", reason="again")
        back = await lineage.record_edge("pi", new, first, by="ann", reason="back", restored=1)
        assert (back.version, back.restored) == (5, 1), "version 3 has the same content"
        other = await lineage.record_edge("pi", first, new, by="ann", reason="no", restored=1)
        assert other.restored == 4, "version 1 is another genome"
        entries = await lineage.history("edge:pi")
        assert [entry.runs for entry in entries] == [(), ("run-1",), (), (), (), ()]
        assert problems([*await lineage.export("edge:pi")]) == []


def test_the_versions_of_an_edge_start_with_its_configuration_and_end_with_its_genome() -> None:
    configured, other = Genome(max_turns=10), Genome(max_turns=3, version=8)
    assert [g.version for g in edge_versions([], configured, configured)] == [0]
    assert [(g.version, g.digest) for g in edge_versions([], configured, other)] == [
        (0, configured.digest),
        (1, other.digest),
    ]
