"""Genomes from the user's chair: changed, used, kept by sessions, rolled back, verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from evoclaw.cli import exits
from evoclaw.core.events import CallFinished, Record
from tests.support.seat import Seat, seat
from tests.support.skills import guide, write_skill
from tests.support.up_process import SETTINGS, ok, start_run, wait_for_state
from tests.support.waiting import until


async def parsed(place: Seat, *arguments: str) -> Any:
    ran = await place.type(*arguments, "--json")
    assert ran.code == exits.OK, ran.err
    return json.loads(ran.out)


async def ask(place: Seat, message: str, **more: Any) -> tuple[dict[str, Any], Any]:
    """A run, and the request that the model got for it."""
    client = await place.up.wait_ready()
    run = await wait_for_state(client, await start_run(client, message, **more))
    asked = next(one for one in reversed(place.up.models.asked) if one.said == message)
    return run, asked.body


def system(body: Any) -> str:
    return str(body["messages"][0]["content"])


async def started(place: Seat, run: dict[str, Any]) -> Any:
    client = await place.up.wait_ready()
    answer = await client.get(f"/v1/runs/{run['run_id']}/records")
    return json.loads(answer.body.splitlines()[0])["event"]


async def test_a_genome_is_used_by_new_sessions_kept_by_old_ones_and_rolled_back(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, SETTINGS, edge=True) as place:
        client = await place.up.wait_ready()
        await place.up.wait_online(client)
        old, body = await ask(place, "say one")
        assert "genome" not in (await started(place, old))["settings"], "as configured"
        patch = {
            "prompt": "Answer like a pirate.",
            "notes": ["Rum is not an answer."],
            "max_turns": 4,
            "temperature": 0.25,
            "tools": {"read": {"description": "Opens a scroll.", "examples": ["read a.txt"]}},
        }
        file = tmp_path / "patch.json"
        file.write_text(json.dumps(patch))
        changed = await parsed(
            place, "genome", "set", "evoclaw", "--file", str(file), "--reason", "dull",
            "--run", old["run_id"],
        )  # fmt: skip
        assert (changed["version"], changed["genome"]) == (1, patch)

        kept, body = await ask(place, "say two", session_id=old["session_id"])
        assert "pirate" not in system(body), "a session keeps its genome"
        assert "genome" not in (await started(place, kept))["settings"]
        new, body = await ask(place, "say three")
        assert "Answer like a pirate.\nNotes from earlier runs:\n- Rum is not" in system(body)
        assert body["temperature"] == 0.25
        shown = {tool["function"]["name"]: tool["function"] for tool in body["tools"]}
        assert shown["read"]["description"] == "Opens a scroll.\nExample: read a.txt"
        settings = (await started(place, new))["settings"]
        assert (settings["genome"], settings["max_turns"]) == (changed["digest"], 4)

        (entry,) = await parsed(place, "genome", "history", "evoclaw")
        assert (entry["reason"], entry["runs"]) == ("dull", [old["run_id"]])
        assert await parsed(place, "genome", "diff", "evoclaw", "0", "1") == patch
        back = await parsed(place, "genome", "rollback", "evoclaw")
        assert (back["version"], back["restored"], back["genome"]) == (2, 0, {})
        _, body = await ask(place, "say four")
        assert "pirate" not in system(body)
        _, body = await ask(place, "say five", session_id=new["session_id"])
        assert "pirate" in system(body), "its session has the genome until it ends"

        export = tmp_path / "lineage.jsonl"
        assert (await place.type("genome", "export", "evoclaw", str(export))).code == exits.OK
        for target in ("evoclaw", str(export)):
            assert (await place.type("genome", "verify", target)).code == exits.OK
        text = export.read_text().replace("Rum is", "Rum was")
        export.write_text(text)
        assert (await place.type("genome", "verify", str(export))).code == exits.FAILED
        audited = ok(await client.get("/v1/audit?kind=genome"))["items"]
        assert [(row["version"], row["reason"]) for row in audited] == [(1, "dull"), (2, "")]


async def test_a_genome_lowers_how_often_a_failed_request_is_repeated(tmp_path: Path) -> None:
    settings = f"{SETTINGS}\n[orchestrator]\nmax_retries = 1\n"
    async with seat(tmp_path, settings) as place:
        file = tmp_path / "patch.json"
        asked = place.up.models.count
        await ask(place, "fail 503 as configured")
        assert asked("fail 503 as configured") == 2
        file.write_text('{"model_retries": 2}')
        ran = await place.type("genome", "set", "evoclaw", "--file", str(file))
        assert "'model_retries' is 2, above the configured limit of 1" in ran.err
        file.write_text('{"model_retries": 0}')
        changed = await parsed(place, "genome", "set", "evoclaw", "--file", str(file))
        assert changed["genome"] == {"model_retries": 0}
        await ask(place, "fail 503 with the genome")
        assert asked("fail 503 with the genome") == 1


async def test_skills_of_a_genome_take_effect(tmp_path: Path) -> None:
    async with seat(tmp_path, SETTINGS, edge=True) as place:
        folder = place.up.home / "skills"
        for name in ("hello", "other"):
            write_skill(folder, name, SKILL_md=guide(name))
        file = tmp_path / "patch.json"
        new = {"waltz": {"description": "At a ball.", "instructions": "Count to three."}}
        patch = {
            "skills": ["hello", "waltz"],
            "skill_texts": {"hello": "Bow first."},
            "new_skills": new,
        }
        file.write_text(json.dumps(patch))
        ran = await place.type("genome", "set", "evoclaw", "--file", str(file))
        assert ran.code == exits.OK, ran.err
        wanted = [f'call skill {{"name": "{name}"}}' for name in ("hello", "other", "waltz")]
        _, body = await ask(place, " && ".join(wanted) + "\nsay done")
        assert "- hello:" in system(body) and "- other:" not in system(body)
        assert "- waltz: At a ball." in system(body)
        results = [m["content"] for m in body["messages"] if m["role"] == "tool"]
        assert "Bow first." in results[0]
        assert results[1] == "Unknown skill 'other'; known: hello, waltz."
        assert results[2] == "# Skill waltz@0\n\nCount to three."


async def test_a_change_that_is_not_allowed_is_refused_in_one_sentence(tmp_path: Path) -> None:
    async with seat(tmp_path) as place:
        file = tmp_path / "patch.json"
        for patch, said in (
            ('{"budget": {"dollars": 100}}', "'budget' is not part of the genome; its keys are"),
            ('{"max_turns": 99}', "above the configured limit of 10: a genome can only lower it"),
            ('{"models": ["openai/x"]}', "This agent is not configured with the model 'openai/x'"),
            ('{"skills": ["none"]}', "This agent has no skill 'none'"),
            ("[]", "must contain a JSON object"),
            ("{", "is not JSON"),
        ):
            file.write_text(patch)
            ran = await place.type("genome", "set", "evoclaw", "--file", str(file))
            assert ran.code != exits.OK and said in ran.err, (patch, ran.err)
        assert (await place.type("genome", "show", "nobody")).code != exits.OK
        shown = await place.type("genome", "show", "evoclaw")
        assert shown.out == "evoclaw: version 0 (as configured)\nas configured\n"


async def test_texts_for_a_tool_that_nothing_has_are_accepted_with_a_warning(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, SETTINGS, edge=True) as place:
        await place.up.wait_online(await place.up.wait_ready())
        file = tmp_path / "patch.json"
        file.write_text('{"tools": {"raed": {"description": "x"}, "read": {"description": "y"}}}')
        ran = await place.type("genome", "set", "evoclaw", "--file", str(file))
        assert ran.code == exits.OK, ran.err
        warnings = [line for line in ran.err.splitlines() if line.startswith("warning: ")]
        assert len(warnings) == 1, ran.err
        assert "no tool has the name 'raed' now" in warnings[0]
        assert "did you mean 'read'?" in warnings[0]


async def test_the_genome_of_an_edge_is_shown_changed_and_rolled_back(tmp_path: Path) -> None:
    async with seat(tmp_path) as place:
        garage = await place.add_edge("garage")
        file = tmp_path / "patch.json"
        file.write_text('{"max_turns": 3, "notes": ["Mind the cat."]}')
        set_garage = ("genome", "set", "garage", "--file", str(file))
        changed = await parsed(place, *set_garage, "--run", "run-1")
        assert changed["genome"]["notes"] == ["Mind the cat."]
        shown = await parsed(place, "genome", "show", "garage")
        found, new = await parsed(place, "genome", "history", "garage")
        assert shown["version"] == changed["version"] == new["version"] == 2
        assert (shown["digest"], new["runs"]) == (new["digest"], ["run-1"])
        back = await parsed(place, "genome", "rollback", "garage")
        assert (back["version"], back["restored"], back["genome"]["max_turns"]) == (3, 1, 10)
        assert back["digest"] == found["digest"]
        forth = await parsed(place, "genome", "rollback", "garage", "2")
        assert (forth["version"], forth["restored"], forth["digest"]) == (4, 2, new["digest"])
        patch = {"max_turns": 10, "notes": None}
        assert await parsed(place, "genome", "diff", "garage", "2", "1") == patch
        back = await parsed(place, "genome", "rollback", "garage", "0")
        assert (back["version"], back["restored"]) == (5, 3), "the last one with this content"
        assert back["genome"]["max_turns"] == 10
        assert (await place.type("genome", "verify", "garage")).code == exits.OK
        for refused, said in (
            ({"models": ["x"]}, "This agent is not configured with the model 'x'"),
            ({"budget": 1}, "'budget' is not part of the genome"),
            ({"max_turns": 99}, "'max_turns' is 99, above the configured limit of 10"),
        ):
            file.write_text(json.dumps(refused))
            ran = await place.type(*set_garage)
            assert said in ran.err
        await garage.end()
        await place.wait_offline("garage")
        for command in (set_garage, ("genome", "show", "garage"), ("genome", "rollback", "garage")):
            ran = await place.type(*command)
            assert ran.code != exits.OK
            assert "The edge 'garage' is offline. Start it, then try again." in ran.err


async def test_the_model_of_an_edge_uses_the_genome_of_the_edge(tmp_path: Path) -> None:
    async with seat(tmp_path, f'{SETTINGS}\n[flow]\npreset = "off"\n') as place:
        settings = '[model]\nname = "vllm/qwen3-scripted,vllm/qwen3-other"\n'
        settings += '[tools]\nskills_path = "~/.evoclaw/skills"\n'
        edge = await place.join("garage", toml=f"\n{settings}")
        write_skill(edge.shell.home / ".evoclaw" / "skills", "hello", SKILL_md=guide("hello"))
        edge.shell.env.update(place.up.models.env)
        await edge.start()
        await place.wait_online("garage")
        patch = {
            "prompt": "Answer like a pirate.",
            "tools": {"read": {"description": "Opens a scroll.", "examples": ["read a.txt"]}},
            "skill_texts": {"hello": "Bow first."},
            "new_skills": {"waltz": {"description": "At a ball.", "instructions": "Count."}},
            "models": ["vllm/qwen3-other"],
            "model_retries": 0,
        }
        file = tmp_path / "patch.json"
        file.write_text(json.dumps(patch))
        changed = await parsed(place, "genome", "set", "garage", "--file", str(file))
        assert changed["genome"].items() >= patch.items()
        query = json.dumps({"agent_id": "garage", "query": "bow and dance"})
        wanted = [f'call skill {{"name": "{name}"}}' for name in ("hello", "waltz")]
        place.up.models.scripts["ask"] = f"call edge_call {query}\nsay Done."
        place.up.models.scripts["bow and dance"] = " && ".join(wanted) + "\nsay Danced."
        run, _ = await ask(place, "ask")
        (first, last) = (a.body for a in place.up.models.asked if a.said == "bow and dance")
        assert first["model"] == "qwen3-other", "the genome orders the models"
        assert system(first).startswith("Answer like a pirate.")
        assert "- hello: Does something." in system(first)
        shown = {tool["function"]["name"]: tool["function"] for tool in first["tools"]}
        assert shown["read"]["description"] == "Opens a scroll.\nExample: read a.txt"
        results = [m["content"] for m in last["messages"] if m["role"] == "tool"]
        assert "Bow first." in results[0]
        assert results[1] == "# Skill waltz@0\n\nCount."

        query = json.dumps({"agent_id": "garage", "query": "fail 503 there"})
        place.up.models.scripts["ask again"] = f"call edge_call {query}\nsay Failed."
        await ask(place, "ask again")
        assert place.up.models.count("fail 503 there") == 2, "once for each of its models"

        client = await place.up.wait_ready()
        lines = (await client.get(f"/v1/runs/{run['run_id']}/records")).body.splitlines()
        events = [msgspec.json.decode(line, type=Record).event for line in lines]
        (finished,) = [event for event in events if isinstance(event, CallFinished)]
        assert finished.result.details["genome"] == changed["digest"]


async def test_a_genome_is_rolled_out_to_edges_and_taken_back(tmp_path: Path) -> None:
    async with seat(tmp_path) as place:
        for name in ("garage", "cellar"):
            await place.add_edge(name)
        file = tmp_path / "patch.json"
        file.write_text('{"max_turns": 3}')
        start = ("genome", "roll-out", "--to", "garage, cellar", "--file", str(file), "--wait")
        done = await parsed(
            place, *start, "--stages", "50,100", "--soak", "0", "--min-evidence", "0",
            "--reason", "shorter runs",
        )  # fmt: skip
        assert (done["state"], done["edges"], done["stage"]) == ("completed", {"applied": 2}, 2)
        shown = await parsed(place, "genome", "roll-outs", done["id"])
        assert [edge["version"] for edge in shown["edges"]] == [1, 1]
        digests = {edge["agent_id"]: edge["digest"] for edge in shown["edges"]}
        listed = {row["agent"]: row["genome"] for row in await parsed(place, "edges", "list")}
        assert listed.items() >= digests.items()
        for name in digests:
            assert (await parsed(place, "genome", "show", name))["genome"]["max_turns"] == 3
        listed = await place.type("genome", "history", "garage")
        assert listed.out.rstrip().endswith("nothing was judged"), listed.out
        halted = await place.type("genome", "halt", done["id"], "--reason", "runs end too early")
        assert halted.code == exits.OK, halted.err

        async def is_back() -> bool:
            (found,) = await parsed(place, "genome", "roll-outs")
            return found["state"] == "rolled_back"

        await until(is_back)
        key = ""
        for name in digests:
            assert (await parsed(place, "genome", "show", name))["genome"]["max_turns"] == 10
            history = await parsed(place, "genome", "history", name)
            kinds = [(entry["kind"], entry["genome"]["max_turns"]) for entry in history]
            assert [kind for kind in kinds if kind[0] != "evaluation"] == [
                ("change", 10), ("change", 3), ("rollback", 10),
            ]  # fmt: skip
            assert history[-1]["reason"] == f"roll-out {done['id']}: runs end too early"
            key = str(history[-1]["key"])
        export = tmp_path / "lineage.jsonl"
        assert (await place.type("genome", "export", "garage", str(export))).code == exits.OK
        for target in ("garage", str(export)):
            assert (await place.type("genome", "verify", target)).code == exits.OK
        assert (await place.type("genome", "verify", "garage", "--key", key)).code == exits.OK
        export.write_text(export.read_text().replace("too early", "too late!"))
        assert (await place.type("genome", "verify", str(export))).code == exits.FAILED
        client = await place.up.wait_ready()
        audited = ok(await client.get("/v1/audit?kind=genome_rollout"))["items"]
        assert [row["what"] for row in audited] == [
            "started", "stage 2 of 2", "completed", "halted", "rolled back",
        ]  # fmt: skip


async def test_a_roll_out_goes_on_after_a_kill_of_the_service(tmp_path: Path) -> None:
    async with seat(tmp_path) as place:
        for name in ("garage", "cellar"):
            await place.add_edge(name)
        file = tmp_path / "patch.json"
        file.write_text('{"max_turns": 3}')
        started = await parsed(
            place, "genome", "roll-out", "--to", "*", "--file", str(file), "--stages", "50,100",
            "--soak", "0", "--min-evidence", "1",
        )  # fmt: skip

        async def has_applied() -> bool:
            found = await parsed(place, "genome", "roll-outs", started["id"])
            return found["rollout"]["edges"].get("applied") == 1

        await until(has_applied)
        refused = await place.type("genome", "set", "garage", "--file", str(file))
        assert "is part of the roll-out" in refused.err
        await place.up.kill()
        await place.up.start()
        for name in ("garage", "cellar"):
            await place.wait_online(name)
        assert await has_applied()
        assert (await place.type("genome", "halt", started["id"])).code == exits.OK

        async def is_back() -> bool:
            (found,) = await parsed(place, "genome", "roll-outs")
            return found["state"] == "rolled_back"

        await until(is_back)
        for name in ("garage", "cellar"):
            assert (await parsed(place, "genome", "show", name))["genome"]["max_turns"] == 10
