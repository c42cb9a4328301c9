"""`evoclaw tools`, `doctor`, `skills`, sessions and SSH, as a user meets them: real processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from evoclaw.tools.sets import TOOL_NAMES
from evoclaw.wiring.pipelines import edge_pipeline, local_pipeline, service_pipeline
from evoclaw.wiring.store import open_sessions
from tests.support.command_line import reply, shell
from tests.support.sshd import sshd


async def test_tools_are_listed_with_the_reason_why_some_are_unavailable(tmp_path: Path) -> None:
    async with shell(tmp_path) as here:
        plain = await here.type("tools")
        everything = await here.type("tools", "--all")
        facts = json.loads((await here.type("tools", "--all", "--json")).out)
    assert plain.code == everything.code == 0
    assert "apply_patch" in plain.out and "websearch" not in plain.out
    assert (
        "websearch        (unavailable: no web search backend is configured: set BRAVE"
        in everything.out
    )
    assert {one["name"] for one in facts} == set(TOOL_NAMES)
    (read,) = [one for one in facts if one["name"] == "read"]
    assert read["available"] and read["permissions"] == ["file_read"]
    assert read["parameters"]["required"] == ["path"]
    assert (read["effect"], read["timeout"], read["max_timeout"]) == ("read", 5.0, 30.0)
    (search,) = [one for one in facts if one["name"] == "websearch"]
    assert not search["available"] and "BRAVE_API_KEY" in search["why"]
    assert search["permissions"] == ["network"] and "query" in search["parameters"]["properties"]
    assert read["runs_on"] == ["edge", "local"]
    assert search["runs_on"] == ["edge", "local", "orchestrator"]
    declared = {spec.name for spec in (local_pipeline(), service_pipeline(), edge_pipeline())}
    assert all(set(tool["pipelines"]) <= declared and tool["pipelines"] for tool in facts)


async def test_setting_an_api_key_makes_its_tool_available(tmp_path: Path) -> None:
    async with shell(tmp_path) as here:
        here.env["BRAVE_API_KEY"] = "key"
        assert "websearch" in (await here.type("tools")).out


async def test_doctor_reports_available_tools_and_how_to_enable_the_others(tmp_path: Path) -> None:
    async with shell(tmp_path) as here:
        here.env["PATH"] = "/nowhere"
        told = await here.type("doctor")
        facts = json.loads((await here.type("doctor", "--json")).out)
    assert told.code == 0
    (usable,) = [line for line in told.out.splitlines() if line.endswith(": can be used")]
    assert usable.startswith("  ✓ read, write, edit, ")
    assert "git_branch: `git` is not installed: install your system's package" in told.out
    assert {one["name"]: one["ok"] for one in facts}["model"] is True


async def test_a_new_skill_is_checked_and_used_in_the_next_run(tmp_path: Path) -> None:
    answers = (
        reply("", ("skill", {"name": "greeter"})),
        reply("", ("greeter", {"who": "Ada"})),
        reply("Greeted."),
    )
    async with shell(tmp_path, *answers) as here:
        assert (await here.type("skills", "new", "greeter", "--tool")).code == 0
        assert "good" in (await here.type("skills", "check", "greeter")).out
        assert "greeter" in (await here.type("tools")).out
        ran = await here.type("run", "--yes", "--json", "greet Ada")
    assert ran.code == 0, ran.err
    records = [json.loads(line)["event"] for line in ran.out.splitlines()]
    prompt = records[0]["messages"][0]["text"]
    assert "- greeter: Say what it does" in prompt, "every skill is named to the model"
    texts = [json.dumps(event) for event in records if event["type"] == "call_finished"]
    assert "Say step by step" in texts[0]
    assert "Hello, Ada!" in texts[1]


async def test_a_custom_tool_is_available_in_the_next_run(tmp_path: Path) -> None:
    answers = (reply("", ("double", {"number": 21})), reply("42."))
    async with shell(tmp_path, *answers) as here:
        folder = here.home / ".evoclaw" / "tools"
        folder.mkdir(parents=True)
        (folder / "dice.py").write_text(
            "from evoclaw import tool\n\n@tool('dice', effect='read')\n"
            "def double(number: int) -> int:\n    'Say what twice a number is.'\n"
            "    return 2 * number\n"
        )
        (folder / "bad.py").write_text("import nowhere_at_all\n")
        for file in folder.iterdir():
            file.chmod(0o600)
        assert "double " in (await here.type("tools")).out
        assert "bad.py             ModuleNotFoundError" in (await here.type("doctor")).out
        ran = await here.type("run", "--json", "twice 21?")
    assert ran.code == 0, ran.err
    assert '"text":"42"' in ran.out


async def test_a_session_and_its_todos_persist_across_processes(tmp_path: Path) -> None:
    todo = {"todos": [{"content": "water the plants", "status": "pending"}]}
    answers = (
        reply("", ("todowrite", todo)),
        reply("Noted."),
        reply("", ("todoread", {}), ("session_status", {})),
        reply("You want to water the plants."),
    )
    async with shell(tmp_path, *answers) as here:
        first = await here.type("run", "--yes", "--session", "home", "remember the plants")
        second = await here.type("run", "--yes", "--session", "home", "--json", "what was it?")
    assert (first.code, first.out) == (0, "Noted.\n"), first.err
    assert "todowrite" in first.err and "question" not in first.err, "nobody is there to be asked"
    assert second.code == 0, second.err
    records = [json.loads(line)["event"] for line in second.out.splitlines()]
    said = json.dumps(records[0]["messages"])
    assert "remember the plants" in said and "Noted." in said, "the conversation goes on"
    assert "water the plants" in json.dumps(
        [event for event in records if event["type"] == "call_finished"]
    )


async def test_an_unfinished_run_of_a_session_is_resumed_first(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("Hello."), reply("Went on."), reply("Now this.")) as here:
        assert (await here.type("run", "--session", "home", "hi")).code == 0
        async with open_sessions(here.environment) as store:
            await store.create_run("cut-off", "home", "something long")  # and then it was killed
        ran = await here.type("run", "--session", "home", "and now?")
        async with open_sessions(here.environment) as store:
            said = [message for _, message in await store.messages("home")]
    assert (ran.code, ran.out) == (0, "Now this.\n"), ran.err
    assert "resuming the unfinished run of this session" in ran.err
    assert "Went on." in str(said)


async def test_a_sub_run_returns_its_answer_to_the_parent_run(tmp_path: Path) -> None:
    asked = {"prompt": "count the files", "description": "count"}
    answers = (reply("", ("task", asked)), reply("There are 3."), reply("Three files."))
    async with shell(tmp_path, *answers) as here:
        ran = await here.type("run", "--yes", "--session", "a", "--json", "how many files?")
    assert ran.code == 0, ran.err
    (done,) = [
        one["event"]
        for one in map(json.loads, ran.out.splitlines())
        if one["event"]["type"] == "call_finished"
    ]
    assert "There are 3." in json.dumps(done)


async def test_a_session_cannot_be_combined_with_on_or_resume(tmp_path: Path) -> None:
    async with shell(tmp_path) as here:
        ran = await here.type("run", "--session", "a", "--on", "pi", "hi")
    assert ran.code == 2 and "cannot be combined with --on or --resume" in ran.err


@pytest.mark.skipif(
    shutil.which("sshd", path="/usr/sbin:/sbin") is None, reason="install openssh-server"
)
async def test_a_run_works_on_a_remote_machine_over_ssh(tmp_path: Path) -> None:
    far = tmp_path / "far"
    far.mkdir()
    (far / "a.txt").write_text("from afar\n")
    answers = (
        reply("", ("read", {"path": "a.txt"}), ("bash", {"command": "pwd > where"})),
        reply("Done."),
    )
    folder = tmp_path / "sshd"
    folder.mkdir()
    with sshd(folder) as server:
        async with shell(tmp_path, *answers) as here:
            keys = here.home / ".ssh"
            keys.mkdir(mode=0o700)
            shutil.copy(server.key, keys / "id_ed25519")
            shutil.copy(server.known_hosts, keys / "known_hosts")
            url = f"ssh://{server.user}@127.0.0.1:{server.port}{far}"
            ran = await here.type("run", "--yes", "--json", "--on", url, "look")
            wrong = await here.type("run", "--on", url, "--tools", "reed", "look")
            (keys / "known_hosts").write_text("")
            strange = await here.type("run", "--on", url, "look")
    assert ran.code == 0, ran.err
    assert "from afar" in ran.out
    assert (far / "where").read_text().strip() == str(far)
    assert wrong.code == 2 and "unknown tool 'reed' in --tools" in wrong.err
    assert strange.code == 2 and "known_hosts" in strange.err
