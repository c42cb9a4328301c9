"""Questions in plain words, answered by a device's own model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.core.messages import JSON, SystemMessage
from evoclaw.edge.genome import EDGE_DEFAULTS, EDGE_SETTINGS
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.providers.text_calls import TextCallProvider
from evoclaw.store.calls.journal import CallState, Journal
from evoclaw.transport.requests import CommandTimeouts
from evoclaw.transport.wire import Command, Outcome
from tests.support.fleet import FleetHarness, new_id, open_fleet


async def prompt(here: FleetHarness, text: str, request_id: str = "", **more: JSON) -> Outcome:
    command = Command("prompt", {"prompt": text, **more}, request_id or new_id())
    async with asyncio.timeout(20):
        return await here.orchestrator.requests.ask("pi", command, CommandTimeouts(10, 5))


async def test_a_repeated_prompt_is_answered_from_the_first_run(tmp_path: Path) -> None:
    model = Scripted(calls(("mark", {"text": "a"})), says("Marked."))
    async with open_fleet(tmp_path, provider=model) as here:
        request_id = new_id()
        first = await prompt(here, "Mark a.", request_id)
        assert (first.result, first.details["stop"]) == ("Marked.", "completed")
        assert (await prompt(here, "Mark a.", request_id)).result == "Marked."
        assert here.marks.made == ["a"]
        assert len(model.requests) == 2


async def test_a_prompt_interrupted_by_a_crash_is_unknown_and_not_run_again(
    tmp_path: Path,
) -> None:
    model = Scripted(calls(("hold", {"text": "a"})), says("never"))
    async with open_fleet(tmp_path, provider=model) as here:
        request_id = new_id()
        asked = asyncio.create_task(prompt(here, "Hold a.", request_id))
        await here.marks.waiting.wait()
        await here.pi.crash()
        await here.pi.start()
        assert (await asked).error_type == "unknown"
        assert len(model.requests) == 1
        row = await here.pi.journal.get(request_id)
        assert row is not None and row.state is CallState.UNKNOWN


async def test_the_genome_sets_the_models_prompt_and_limits(tmp_path: Path) -> None:
    model = Scripted(*(calls(("look", {"text": str(n)})) for n in range(3)), says("That is all."))
    async with open_fleet(tmp_path, provider=model) as here:
        genome = {"prompt": "Be brief.", "max_turns": 2, "temperature": 0.5}
        await here.orchestrator.query("pi", "update_genome", {"genome": genome})
        outcome = await prompt(here, "Look.")
        assert model.requests[0].messages[0] == SystemMessage("Be brief.")
        assert outcome.details["stop"] == "max_iterations"
        metrics = (await here.orchestrator.query("pi", "get_metrics")).result
        assert outcome.details["genome"] == metrics["genome"]["digest"], "which genome it had"
        assert here.marks.made == ["0", "1"]


async def test_the_configured_limit_wins_over_a_higher_one_in_the_journal(tmp_path: Path) -> None:
    turns = EDGE_SETTINGS.max_turns
    model = Scripted(*(calls(("look", {"text": str(n)})) for n in range(turns + 2)), says("End."))
    async with await Journal.open(tmp_path / "pi.db", durable=False) as journal:
        kept = {"max_turns": turns + 5, "concurrency": 64}
        await journal.remember_version("genome", msgspec.json.encode(kept))
    async with open_fleet(tmp_path, provider=model) as here:
        outcome = await prompt(here, "Look.")
        assert outcome.details["stop"] == "max_iterations"
        assert len(here.marks.made) == turns


async def test_the_genome_sets_what_tells_a_model_without_native_calls_its_tools(
    tmp_path: Path,
) -> None:
    model = Scripted(says('{"name": "answer", "arguments": {"text": "Hello."}}'))
    async with open_fleet(tmp_path, provider=TextCallProvider(model, "json")) as here:
        genome = {"tool_prompt": "Tools of this device:\n{tools}\nEnd with {answer}."}
        await here.orchestrator.query("pi", "update_genome", {"genome": genome})
        assert (await prompt(here, "Hello?")).result == "Hello."
        (told, _) = model.requests[0].messages
        assert isinstance(told, SystemMessage)
        assert told.text.startswith('Tools of this device:\n{"name":')
        assert told.text.endswith("End with answer.")


async def test_the_genome_sets_descriptions_of_tools_and_brings_skills(tmp_path: Path) -> None:
    model = Scripted(
        says('{"name": "skill", "arguments": {"name": "waltz"}}'),
        says('{"name": "answer", "arguments": {"text": "One, two, three."}}'),
    )
    async with open_fleet(tmp_path, provider=TextCallProvider(model, "json")) as here:
        advertised = dict(here.orchestrator.fleet.member("pi").advertised_hashes)
        genome: JSON = {
            "tools": {"mark": {"description": "Puts a cross.", "examples": ["mark text=a"]}},
            "new_skills": {"waltz": {"description": "At a ball.", "instructions": "Count to 3."}},
        }
        changed = await here.orchestrator.query("pi", "update_genome", {"genome": genome})
        assert changed.status == "success", changed.error
        assert (await prompt(here, "Dance.")).result == "One, two, three."
        first, second = (request.messages for request in model.requests)
        assert isinstance(first[0], SystemMessage)
        assert "Puts a cross.\\nExample: mark text=a" in first[0].text
        assert "- waltz: At a ball." in first[0].text
        assert "Count to 3." in str(second[-1])
        assert here.orchestrator.fleet.member("pi").advertised_hashes == advertised, (
            "other callers see the tools as a person approved them"
        )


async def test_the_genome_sets_how_often_the_model_may_try_again(tmp_path: Path) -> None:
    model = Scripted(calls(("mark", {"wrong": 1})), calls(("mark", {"also": 1})))
    async with open_fleet(tmp_path, provider=model) as here:
        patch: JSON = {"genome": {"tool_error_limit": 1}}
        await here.orchestrator.query("pi", "update_genome", patch)
        assert (await prompt(here, "Mark.")).error_type == "execution_failed"
        assert len(model.requests) == 1


async def test_the_history_of_a_genome_fits_into_its_answer(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        for number in range(1, 9):
            patch: JSON = {"genome": {"notes": [f"{number} " + "x" * 990] * 50}}
            await here.orchestrator.query("pi", "update_genome", patch)
        status = (await here.orchestrator.query("pi", "evolution")).result
        assert [genome["version"] for genome in status["history"]] == [0, 7, 8]
        assert status["genome"]["version"] == 8


async def test_a_prompt_ends_at_its_timeout_or_the_genomes_run_seconds(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, provider=Scripted(calls(("hold", {"text": "a"})))) as here:
        outcome = await prompt(here, "Hold.", timeout_ms=300)
        assert outcome.error_type == "timeout"
    two = tmp_path / "two"
    async with open_fleet(two, provider=Scripted(calls(("hold", {"text": "a"})))) as here:
        await here.orchestrator.query("pi", "update_genome", {"genome": {"run_seconds": 0.3}})
        outcome = await prompt(here, "Hold.", timeout_ms=30_000)
        assert outcome.error_type == "timeout", "no longer than the genome gives a run"


async def test_a_prompt_without_text_or_to_an_edge_without_a_model_is_refused(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        assert (await prompt(here, "Hello?")).error_type == "not_found"
        assert (await prompt(here, "  ")).error_type == "invalid_params"


async def runs(here: FleetHarness) -> JSON:
    return (await here.orchestrator.query("pi", "get_metrics")).result["tools"]


async def test_prompt_outcomes_are_counted_separately_for_tools_and_model(
    tmp_path: Path,
) -> None:
    bad = calls(("mark", {"wrong": 1}))
    also_bad = calls(("mark", {"also": 1}))
    broken = ProviderError(ProviderErrorKind.AUTH_ERROR, "no key")
    model = Scripted(
        *(calls(("mark", {"text": "a"})), says("Done.")),
        *(bad, also_bad, calls(("mark", {"third": 1}))),
        broken,
    )
    async with open_fleet(tmp_path, provider=model) as here:
        assert (await prompt(here, "Mark.")).status == "success"
        failed = await prompt(here, "Mark badly.")
        assert failed.error_type == "execution_failed"
        assert failed.details["genome"] == EDGE_DEFAULTS.digest, "also of a run that failed"
        assert (await prompt(here, "Mark now.")).error_type == "execution_failed"
        figures = await runs(here)
        assert figures["runs"]["completed"] == 1
        assert figures["runs"]["tool_errors"] == 1, "its tools brought one down"
        assert figures["runs"]["model_errors"] == 1, "and its model another"
        mark = figures["tools"]["mark"]
        assert (mark["success_count"], mark["total_calls"]) == (1, 4)
        assert "prompt" not in figures["tools"]


async def test_cancelling_a_prompt_cancels_the_calls_of_its_model(tmp_path: Path) -> None:
    model = Scripted(calls(("hold", {"text": "a"})), says("never"))
    async with open_fleet(tmp_path, provider=model) as here:
        request_id = new_id()
        asked = asyncio.create_task(prompt(here, "Hold.", request_id))
        await here.marks.waiting.wait()
        asked.cancel()
        await asyncio.wait([asked])
        await here.wait_for_state(request_id, "settled")
        row = await here.row(request_id)
        assert row.outcome is not None
        assert msgspec.json.decode(row.outcome, type=Outcome).error_type == "cancelled"
        assert len(model.requests) == 1
