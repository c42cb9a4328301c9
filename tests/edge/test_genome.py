"""The genome: checked before it changes, kept in versions, undone on request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.errors import ToolFailure
from evoclaw.core.genome import EDGE_TUNABLES, GENOME_RULES, Genome
from evoclaw.core.messages import ErrorKind
from evoclaw.core.tools import Tool
from evoclaw.edge.genome import (
    EDGE_DEFAULTS,
    Genomes,
    GenomeUnreadable,
)
from evoclaw.edge.plans import commands_within
from evoclaw.skills.tuned import GenomeSkills
from evoclaw.store.calls.journal import Journal, Version
from evoclaw.transport.wire import Command


class Shelf(Journal):
    """A store in memory; it can be full, and it lets others in before it answers."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self.full = False

    async def remember_version(self, key: str, value: bytes, *, keep: int = 100) -> int:
        await asyncio.sleep(0)
        if self.full:
            raise OSError("no space left on device")
        self.kept.append(value)
        return len(self.kept)

    async def versions(self, key: str, limit: int = 100) -> list[Version]:
        await asyncio.sleep(0)
        return [Version(n, value, 0.0) for n, value in enumerate(self.kept, 1)][::-1]


SKILLS = {"a": frozenset({"dig"}), "b": frozenset({"plant"}), "x": frozenset[str]()}


async def opened(shelf: Journal, first: Genome | None = None) -> Genomes:
    genomes = Genomes(shelf, first, skills=lambda: SKILLS, models=["a/big", "b/small"])
    await genomes.load()
    return genomes


async def test_a_new_edge_starts_with_its_configured_genome() -> None:
    genomes = await opened(Shelf(), Genome(concurrency=2))
    assert genomes.current() == Genome(concurrency=2)
    assert await genomes.history() == [Genome(concurrency=2)]


async def test_a_genome_patch_changes_named_fields_and_survives_a_restart() -> None:
    shelf = Shelf()
    genomes = await opened(shelf)
    await genomes.update({"prompt": "Be brief.", "temperature": 1, "skills": ["a", "b"]})
    changed = await genomes.update({"max_turns": 3, "temperature": None})
    assert (changed.prompt, changed.temperature, changed.max_turns) == ("Be brief.", None, 3)
    assert (changed.skills, changed.version) == (("a", "b"), 2)
    again = await opened(shelf)
    assert again.current() == changed
    assert [genome.version for genome in await again.history()] == [0, 1, 2]


async def test_null_restores_the_configured_genome_value() -> None:
    genomes = await opened(Shelf(), Genome(max_turns=7, prompt="first"))
    await genomes.update({"max_turns": 9, "prompt": "second"})
    assert (await genomes.update({"max_turns": None})).max_turns == 7
    assert genomes.current().prompt == "second"


async def test_the_same_patch_twice_makes_one_version() -> None:
    shelf = Shelf()
    genomes = await opened(shelf)
    first = await genomes.update({"max_turns": 3})
    assert await genomes.update({"max_turns": 3}) is first
    assert await genomes.update({}) is first
    assert len(shelf.kept) == 1


GOOD: dict[str, list[Any]] = {
    "prompt": ["", "x" * 16_000],
    "temperature": [0, 2, 0.5],
    "max_turns": [1, 10],
    "call_seconds": [0.001, 3600],
    "run_seconds": [1, 3600],
    "concurrency": [1, 64],
    "skills": [[], ["x"] * 200],
    "notes": [[], ["x" * 1_000] * 100],
    "tool_prompt": ["", "{tools}" + "x" * 3_993],
    "tool_error_limit": [1, 3],
    "model_retries": [0, 20],
    "skill_texts": [{}, {"a": "Dig."}],
    "new_skills": [{}, {"waltz": {"description": "At a ball.", "instructions": "Count."}}],
    "tools": [{}, {"dig": {"description": "Digs.", "examples": ["dig depth=1"]}}],
    "models": [[], ["b/small"], ["b/small", "a/big"]],
}
BAD: dict[str, list[Any]] = {
    "prompt": ["x" * 16_001, 3, "\ud800"],
    "temperature": [-0.1, 2.1, "1", True, float("nan")],
    "max_turns": [0, 101, 1.5, "3", True],
    "call_seconds": [0, -1, 3601, float("inf"), float("nan")],
    "run_seconds": [0, 86_401],
    "concurrency": [0, 65],
    "skills": ["x", [""], ["x" * 65], ["x"] * 201, [1], {}],
    "notes": ["x", [""], ["x" * 1_001], ["x"] * 101, {}],
    "tool_prompt": ["x", "{tools} {0}", "{tools}" + "x" * 3_994, {}],
    "tool_error_limit": [0, 101, 1.5],
    "model_retries": [-1, 21, 0.5],
    "skill_texts": [{"a": ""}, []],
    "new_skills": [{"waltz": {"description": "x"}}],
    "tools": [{"dig": {"permissions": []}}],
    "models": ["a/big", [""], [1]],
}


@pytest.mark.parametrize("key", EDGE_TUNABLES)
async def test_out_of_range_genome_values_are_refused_with_their_range(key: str) -> None:
    shelf = Shelf()
    for value in GOOD[key]:
        await (await opened(Shelf())).update({key: value})
    genomes = await opened(shelf)
    for value in BAD[key]:
        with pytest.raises(ToolFailure) as caught:
            await genomes.update({"prompt": "new", "skills": None, key: value})
        assert caught.value.kind is ErrorKind.INVALID_PARAMS
        assert caught.value.message == f"{key!r} must be {GENOME_RULES[key]}. Nothing was changed."
    assert genomes.current() == EDGE_DEFAULTS
    assert shelf.kept == []


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"max_turns": 99}, "'max_turns' is 99, above the configured limit of 10"),
        ({"tool_error_limit": 4}, "'tool_error_limit' is 4, above the configured limit of 3"),
        ({"run_seconds": 80_000}, "'run_seconds' is 80000.0, above the configured limit of 3600.0"),
        ({"model_retries": 2}, "'model_retries' is 2, above the configured limit of 1"),
        ({"concurrency": 3}, "'concurrency' is 3, above the configured limit of 2"),
    ],
)
async def test_a_genome_cannot_raise_a_configured_limit_of_the_edge(
    patch: dict[str, Any], said: str
) -> None:
    shelf = Shelf()
    genomes = Genomes(shelf, skills=lambda: SKILLS, model_retries=1, concurrency=2)
    await genomes.load()
    with pytest.raises(ToolFailure) as caught:
        await genomes.update({"prompt": "new", **patch})
    assert caught.value.kind is ErrorKind.INVALID_PARAMS
    assert caught.value.message == f"{said}: a genome can only lower it. Nothing was changed."
    assert (genomes.current(), shelf.kept) == (EDGE_DEFAULTS, [])
    at_most: dict[str, Any] = {"max_turns": 10, "run_seconds": 3600, "concurrency": 2}
    assert (await genomes.update(at_most)).concurrency == 2


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"models": ["c/x"]}, "not configured with the model 'c/x'; its models: a/big, b/small"),
        ({"skill_texts": {"c": "x"}}, "no skill 'c'; its skills: a, b, b-o, x"),
        ({"new_skills": {"a": {"description": "x", "instructions": "y"}}}, "a skill 'a' already"),
        ({"new_skills": {"b-0": {"description": "x", "instructions": "y"}}}, "looks like 'b-o'"),
    ],
)
async def test_texts_and_models_that_the_edge_cannot_use_are_refused(
    patch: dict[str, Any], said: str
) -> None:
    shelf = Shelf()
    genomes = Genomes(
        shelf, skills=lambda: {**SKILLS, "b-o": frozenset[str]()}, models=["a/big", "b/small"]
    )
    await genomes.load()
    with pytest.raises(ToolFailure, match=said):
        await genomes.update(patch)
    assert shelf.kept == []


async def test_a_genome_that_fits_into_no_message_is_refused() -> None:
    genomes = await opened(Shelf())
    texts = dict.fromkeys(SKILLS, "x" * 32000)
    await genomes.update({"skill_texts": texts})
    with pytest.raises(ToolFailure, match="more than the 120000 that an edge can report"):
        await genomes.update({"notes": ["x" * 1_000] * 30})


async def test_a_limit_that_an_earlier_release_kept_hinders_no_other_change() -> None:
    shelf = Shelf()
    shelf.kept.append(msgspec.json.encode({"max_turns": 99, "run_seconds": 80_000}))
    genomes = await opened(shelf)
    assert genomes.current().max_turns == 99
    assert (await genomes.update({"prompt": "Be brief."})).prompt == "Be brief."
    with pytest.raises(ToolFailure, match="'max_turns' is 98, above the configured limit of 10"):
        await genomes.update({"max_turns": 98})
    assert (await genomes.update({"max_turns": None})).max_turns == 10
    assert (await genomes.roll_back(1)).max_turns == 99, "every version can be restored"


@pytest.mark.parametrize("key", ["version", "restored", "promt", "", "strategy", "model", "policy"])
async def test_unknown_genome_keys_are_refused_with_the_known_keys(key: str) -> None:
    genomes = await opened(Shelf())
    with pytest.raises(
        ToolFailure, match=f"'{key}' is not part of the genome; its keys are prompt, "
    ):
        await genomes.update({"max_turns": 3, key: 1})
    assert genomes.current() == EDGE_DEFAULTS


async def test_a_genome_change_that_cannot_be_stored_is_not_applied() -> None:
    shelf = Shelf()
    genomes = await opened(shelf)
    shelf.full = True
    with pytest.raises(OSError, match="no space"):
        await genomes.update({"max_turns": 3})
    assert genomes.current() == EDGE_DEFAULTS
    shelf.full = False
    assert (await genomes.update({"max_turns": 3})).version == 1


async def test_concurrent_genome_patches_are_all_applied() -> None:
    genomes = await opened(Shelf())
    patches = ({"max_turns": 3}, {"temperature": 1}, {"prompt": "x"}, {"concurrency": 2})
    await asyncio.gather(*map(genomes.update, patches))
    now = genomes.current()
    assert (now.max_turns, now.temperature, now.prompt, now.concurrency) == (3, 1, "x", 2)
    assert now.version == len(patches)


async def test_rolling_back_makes_a_new_version_equal_to_the_old_one() -> None:
    shelf = Shelf()
    genomes = await opened(shelf)
    for turns in (1, 2, 3):
        await genomes.update({"max_turns": turns})
    back = await genomes.roll_back(1)
    assert (back.max_turns, back.version, back.restored) == (1, 4, 1)
    assert await genomes.roll_back(1) is back
    assert len(await genomes.history()) == 5
    assert (await opened(shelf)).current() == back
    assert (await genomes.roll_back(0)).max_turns == EDGE_DEFAULTS.max_turns


async def test_repeated_rollbacks_step_back_one_version_at_a_time() -> None:
    genomes = await opened(Shelf())
    for turns in (1, 2, 3):
        await genomes.update({"max_turns": turns})
    assert [(await genomes.roll_back()).max_turns for _ in range(3)] == [2, 1, 10]
    with pytest.raises(ToolFailure, match="no earlier version"):
        await genomes.roll_back()
    assert (await genomes.update({"max_turns": 4})).version == 7
    assert (await genomes.roll_back()).max_turns == 10


async def test_rolling_back_to_an_unknown_version_is_refused() -> None:
    genomes = await opened(Shelf())
    with pytest.raises(ToolFailure, match="no version 1; available versions: only 0"):
        await genomes.roll_back(1)
    await genomes.update({"max_turns": 3})
    with pytest.raises(ToolFailure, match="available versions: 0 and 1 to 1"):
        await genomes.roll_back(-1)
    with pytest.raises(ToolFailure, match="available versions: 0 and 1 to 1"):
        await genomes.roll_back(2)


async def test_fault_27_a_damaged_genome_version_is_reported_and_can_be_rolled_back() -> None:
    shelf = Shelf()
    genomes = await opened(shelf)
    await genomes.update({"max_turns": 3})
    await genomes.update({"max_turns": 4})
    shelf.kept[-1] = shelf.kept[-1].replace(b'"max_turns":4', b'"max_turns":400')
    again = Genomes(shelf)
    with pytest.raises(GenomeUnreadable, match="version 2 of the genome cannot be read"):
        await again.load()
    with pytest.raises(RuntimeError):
        again.current()
    assert (await again.roll_back()).max_turns == 3
    assert again.current().version == 3


async def test_genomes_of_earlier_releases_load_and_unknown_fields_are_refused() -> None:
    shelf = Shelf()
    shelf.kept.append(msgspec.json.encode({"max_turns": 3, "strategy": {"pair": "A"}}))
    assert (await opened(shelf)).current() == Genome(max_turns=3, run_seconds=3600, version=1)
    wrong: tuple[Any, ...] = ({"wings": 2}, {"max_turns": 101}, [])
    for value in wrong:
        shelf.kept[0] = msgspec.json.encode(value)
        with pytest.raises(GenomeUnreadable):
            await opened(shelf)
    for damaged in (b"", b'{"pro\xffpt":"x"}', b'{"prompt":"\xff"}'):
        shelf.kept[0] = damaged
        with pytest.raises(GenomeUnreadable):
            await opened(shelf)


async def test_the_edge_journal_stores_genomes_and_deletes_the_oldest(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path / "journal.db", durable=False)
    genomes = await opened(journal)
    for number in range(1, 101):
        await genomes.update({"call_seconds": number, "notes": [f"ü{number}"]})
    for number in (1, 2):
        await genomes.update({"call_seconds": number})
    await journal.close()
    journal = await Journal.open(tmp_path / "journal.db", durable=False)
    again = await opened(journal)
    assert again.current() == genomes.current()
    assert [genome.version for genome in await again.history()] == [0, *range(3, 103)]
    with pytest.raises(ToolFailure, match="no version 2; available versions: 0 and 3 to 102"):
        await again.roll_back(2)
    assert (await again.roll_back(3)).call_seconds == 3
    assert (await again.roll_back()).version == 104
    await journal.close()


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(
    st.dictionaries(
        st.sampled_from(sorted(GENOME_RULES)) | st.text(max_size=5), ANY_JSON, max_size=4
    )
)
async def test_a_genome_patch_is_applied_completely_or_refused(patch: dict[str, Any]) -> None:
    shelf = Shelf()
    genomes = await opened(shelf)
    try:
        changed = await genomes.update(patch)
    except ToolFailure:
        assert genomes.current() == EDGE_DEFAULTS
        assert shelf.kept == []
    else:
        assert (await opened(shelf)).current() == changed
        assert set(patch) <= set(GENOME_RULES)


async def test_only_the_tools_of_enabled_skills_are_offered_and_unknown_skills_are_refused() -> (
    None
):
    genomes = await opened(Shelf())
    step = GenomeSkills(genomes.current, lambda: SKILLS)
    tools = [Tool(name, "", {}) for name in ("dig", "plant", "read")]

    def offered() -> list[str]:
        return [tool.name for tool in step.offer(tools)]

    assert offered() == ["dig", "plant", "read"]
    await genomes.update({"skills": ["a"]})
    assert offered() == ["dig", "read"]
    await genomes.update({"skills": []})
    assert offered() == ["read"]
    with pytest.raises(ToolFailure, match=r"no skill 'c'; its skills: a, b, x"):
        await genomes.update({"skills": ["a", "c"]})
    assert offered() == ["read"], "nothing was changed"


def test_the_older_name_of_a_genome_change_needs_the_same_permission() -> None:
    command = Command("update_strategy", {"strategy": {"max_turns": 3}}, "r")
    assert commands_within(command) == ("update_strategy", "update_genome")
