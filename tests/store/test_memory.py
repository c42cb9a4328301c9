"""What was noted is found by its words, on both databases; no text is anything but words."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from evoclaw.core.labels import Label
from evoclaw.store import memory
from evoclaw.store.databases.database import Schema
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.memory import (
    SCHEMA,
    EventType,
    MemoryFilter,
    MemoryStore,
    Observation,
    query_words,
)
from tests.support.properties import examples

UNTRUSTED = Label(untrusted=True, sources=("webfetch",))
ODD = ('"', "NEAR(", "a AND", "whose : x", "*", "^a", "-", "' OR 1=1 --", "\0", "\ud800", "a\0b c")
"""Each of these means something to a query language."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    if request.param == "sqlite":
        return tmp_path / "evoclaw.db"
    return request.getfixturevalue("postgres_url")


@asynccontextmanager
async def opened(
    place: Path | str, schema: str = "", version: Schema = SCHEMA
) -> AsyncGenerator[MemoryStore]:
    schema = schema or f"m{secrets.token_hex(6)}"
    database = await open_database(place, (version,), schema=schema, durable=False)
    try:
        async with asyncio.timeout(30):
            yield MemoryStore(database)
    finally:
        await database.close()


def note(
    content: str,
    id_: str = "",
    *,
    session: str = "s",
    agent: str = "lead",
    at: float = 1.0,
    label: Label | None = None,
) -> Observation:
    return Observation(
        id_ or secrets.token_hex(4),
        session,
        agent,
        EventType.LLM_RESPONSE,
        content,
        {"run_id": "r"},
        ("tag",),
        at,
        label or Label(),
    )


async def found(store: MemoryStore, query: str, scope: MemoryFilter | None = None) -> list[str]:
    return [one.observation.content for one in await store.find(query, 10, scope or MemoryFilter())]


async def test_search_ranks_by_relevance_then_by_recency(place: Path | str) -> None:
    async with opened(place) as store:
        await store.add(
            [
                note("the garden needs water"),
                note("deployed the gateway to the staging cluster"),
                note("the staging cluster is in Oslo"),
                note("the staging cluster is in Oslo"),
            ]
        )
        hits = await store.find("how do I deploy to the staging cluster?", 10)
        contents = [one.observation.content for one in hits]
        assert contents[0].startswith("deployed") and len(contents) == 3
        assert hits[1].seq > hits[2].seq
        assert hits[0].score > hits[1].score == hits[2].score
        assert await found(store, "what is the and of it") == []


async def test_an_observation_round_trips_unchanged(place: Path | str) -> None:
    async with opened(place) as store:
        put = note("naïve Ωmega 日本語\n\tlines", "one", label=UNTRUSTED)
        await store.add([put])
        assert await store.get("one") == put
        assert await store.get("two") is None
        assert (await store.find("ωmega"))[0].observation == put


async def test_an_observation_id_is_stored_once(place: Path | str) -> None:
    async with opened(place) as store:
        await store.add([note("first words", "one")])
        await store.add([note("second words", "one"), note("third words", "two")])
        assert sorted(await found(store, "words")) == ["first words", "third words"]
        assert await found(store, "second") == []


async def test_search_never_finds_observations_of_another_tenant_or_user(place: Path | str) -> None:
    async with opened(place) as store:
        whose = [("acme", "ann"), ("acme", "bob"), ("local", "ann"), ("local", "")]
        for tenant, user in whose:
            await store.of(tenant, user).add([note(f"secret of {tenant} {user}", "same")])
        for tenant, user in whose:
            own = store.of(tenant, user)
            assert await found(own, "secret") == [f"secret of {tenant} {user}"]
            assert (await own.get("same")) is not None
        stranger = store.of("other", "ann")
        assert await found(stranger, "secret") == []
        assert await stranger.get("same") is None
        assert await stranger.delete_session("s") == 0
        assert await store.of("acme", "ann").delete_session("s") == 1
        assert await found(store.of("acme", "bob"), "secret") == ["secret of acme bob"]


async def test_a_scope_narrows_by_agent_session_and_label(place: Path | str) -> None:
    async with opened(place) as store:
        await store.add(
            [
                note("apples one", session="a", agent="lead"),
                note("apples two", session="b", agent="help"),
                note("apples three", session="b", agent="lead", label=UNTRUSTED),
                note("apples four", session="b", agent="lead", label=Label(private=True)),
            ]
        )
        assert await found(store, "apples", MemoryFilter(agent="help")) == ["apples two"]
        assert await found(store, "apples", MemoryFilter(session_id="a")) == ["apples one"]
        assert len(await found(store, "apples", MemoryFilter(excluded_session="a"))) == 3
        assert sorted(await found(store, "apples", MemoryFilter(clean_only=True))) == [
            "apples one",
            "apples two",
        ]


async def test_around_returns_the_neighbouring_observations_in_order(place: Path | str) -> None:
    async with opened(place) as store:
        numbers = ["zero", "one", "two", "three", "four", "five", "six"]
        await store.add([note(word, session="a") for word in numbers])
        await store.add([note("elsewhere", session="b")])
        (hit,) = await store.find("three")
        around = await store.around(hit)
        assert [one.observation.content for one in around] == numbers[1:6]
        (last,) = await store.find("six")
        assert [o.observation.content for o in await store.around(last)] == numbers[4:]


async def test_deleted_observations_are_not_found(place: Path | str) -> None:
    async with opened(place) as store:
        await store.add([note(f"pears {n}", session="a", at=float(n)) for n in range(10)])
        await store.add([note("pears other", session="b", at=3.5)])
        assert await store.delete_before(4.0) == 5
        assert len(await found(store, "pears")) == 6
        assert await store.delete_session("a") == 6
        assert await found(store, "pears") == []
        assert await store.delete_session("a") == 0


async def test_deletion_covers_more_than_one_batch(
    place: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "DELETE_BATCH_ROWS", 3)
    async with opened(place) as store:
        await store.add([note("plums") for _ in range(7)])
        assert await store.delete_session("s") == 7


async def test_search_covers_only_the_newest_observations_of_an_owner(
    place: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MAX_SEARCHED_OBSERVATIONS", 3)
    async with opened(place) as store:
        await store.add([note(f"figs {n}") for n in range(6)])
        await store.of("acme").add([note("figs theirs") for _ in range(6)])
        assert await found(store, "figs") == ["figs 5", "figs 4", "figs 3", "figs 2"]


async def test_observations_and_deletions_survive_reopening(place: Path | str) -> None:
    async with opened(place, "again") as store:
        await store.add([note("a note that lasts", "one")])
    async with opened(place, "again") as store:
        assert await found(store, "lasts") == ["a note that lasts"]
        assert await store.delete_session("s") == 1
    async with opened(place, "again") as store:
        assert await found(store, "lasts") == []


async def test_observations_of_a_database_with_the_word_index_are_still_found(
    place: Path | str,
) -> None:
    first = replace(
        SCHEMA,
        migrations=SCHEMA.migrations[:1],
        postgres_migrations=SCHEMA.postgres_migrations[:1],
    )
    async with opened(place, "older", first) as store:
        await store.add([note("a note from yesterday", "one")])
    async with opened(place, "older") as store:
        await store.add([note("a note from today", "two")])
        assert sorted(await found(store, "note")) == ["a note from today", "a note from yesterday"]
        assert await found(store, "yesterday") == ["a note from yesterday"]


@pytest.mark.parametrize("query", ODD)
async def test_query_syntax_in_text_is_treated_as_words(place: Path | str, query: str) -> None:
    async with opened(place) as store:
        await store.add([note(query), note("whose is it, near or far")])
        await store.find(query)
        assert "whose is it, near or far" in await found(store, f"{query} whose far")


@given(st.text(max_size=60) | st.text(alphabet="\"*():^-+{}|&<>'ANDORNOTEARa \0", max_size=40))
@settings(deadline=None)
@example("½ ² ٣ ⅷ")
def test_no_query_text_is_a_syntax_error(query: str) -> None:
    async def go() -> None:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for step in SCHEMA.migrations:
            for statement in step:
                connection.execute(statement)
        async with SqliteDatabase(Path("memory"), connection, durable=False) as database:
            store = MemoryStore(database)
            await store.add([note(f"known {query}"), note("known, too")])
            assert len(await store.find(f"known {query}")) == 2
            await store.find(query)
            assert await store.delete_session("s") == 2
            assert await store.find(f"known {query}") == []
            check = "INSERT INTO memory_words (memory_words) VALUES ('integrity-check')"
            await database.write(lambda c: c.execute(check))

    asyncio.run(go())


@given(st.lists(st.text(max_size=30), max_size=8))
@settings(
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
def test_any_text_can_be_stored_and_searched(place: Path | str, texts: list[str]) -> None:
    async def go() -> None:
        async with opened(place) as everybody:
            store = everybody.of(secrets.token_hex(4))
            await store.add([note(f"known {text}") for text in texts])
            for text in texts:
                assert len(await store.find(f"{text} known", 100)) == len(texts)

    asyncio.run(go())


def test_words_of_deduplicates_and_limits_words() -> None:
    assert query_words("The RED red fox's tail_end, and then") == (
        "red",
        "fox",
        "s",
        "tail",
        "end",
        "then",
    )
    assert len(query_words(" ".join(f"w{n}" for n in range(1000)))) == memory.MAX_QUERY_WORDS
    assert query_words("x" * 10_000) == ()


async def test_only_the_newest_matches_are_ranked(
    place: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MAX_RANKED_OBSERVATIONS", 3)
    async with opened(place) as store:
        texts = ["fox fox fox", "a fox", "fox and fox", "nothing", "a fox", "the fox"]
        kept = [
            Observation(f"o{n}", "s", "lead", EventType.DECISION, text, timestamp=float(n))
            for n, text in enumerate(texts)
        ]
        await store.add(kept)
        found = [one.observation.id for one in await store.find("fox", limit=10)]
        assert sorted(found) == ["o2", "o4", "o5"] and found[0] == "o2"
        assert [one.observation.id for one in await store.find("nothing")] == ["o3"]
