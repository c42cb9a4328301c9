"""Evaluations from the user's chair: cases by hand and from a run, real tools in a sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from socket import gethostname
from typing import Any

from evoclaw.cli import exits
from evoclaw.core.version import VERSION
from tests.support.command_line import Typed
from tests.support.seat import Seat, seat
from tests.support.up_process import SETTINGS, ok, start_run, wait_for_state

BY_HAND = r"""
message = '''call write {"path": "b.txt", "content": "hello"}
call bash {"command": "cat a.txt >> c.txt"}
say done'''
workspace = "start"

[[checks]]
kind = "file"
path = "b.txt"
equals = "hello"

[[checks]]
kind = "command"
command = "grep -q begin c.txt"

[[checks]]
kind = "called"
tool = "write"

[[checks]]
kind = "not_called"
tool = "webfetch"
"""


SUPERVISED = SETTINGS.replace('autonomy = "full"', 'autonomy = "supervised"')


def parsed(ran: Typed) -> Any:
    assert ran.out.strip(), ran.err
    return json.loads(ran.out)


def cases_in(place: Seat, name: str = "exams") -> Path:
    folder = place.up.home / name
    (folder / "start").mkdir(parents=True)
    (folder / "start" / "a.txt").write_text("begin\n")
    return folder


async def test_cases_run_with_the_agents_own_tools_and_the_result_is_in_the_lineage(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, f'{SETTINGS}\n[evolution]\ncases = "exams"\n') as place:
        folder = cases_in(place)
        (folder / "hand.toml").write_text(BY_HAND)
        (folder / "no.toml").write_text(
            'message = "say no"\nsplit = "validation"\n'
            '[[checks]]\nkind = "answer"\nequals = "yes"\n'
        )
        listed = parsed(await place.type("cases", "list", "--json"))
        assert [(case["name"], case["split"]) for case in listed] == [
            ("hand", "train"),
            ("no", "validation"),
        ]
        ran = await place.type("eval", "evoclaw", "--repeat", "2", "--json")
        assert ran.code == exits.FAILED, ran.err
        done = parsed(ran)
        problems = [attempt["problems"] for attempt in done["attempts"]]
        assert done["cases"]["hand"]["passed"] == 2, problems
        assert done["cases"]["no"]["passed"] == 0
        assert (done["total"]["passed"], done["total"]["attempts"]) == (2, 4)
        assert done["coverage"] is None, "the calls were executed"
        assert (folder / "start" / "a.txt").read_text() == "begin\n"
        assert not (folder / "start" / "b.txt").exists()

        only = await place.type("eval", "evoclaw", "--cases", "hand")
        assert only.code == exits.OK, only.err
        assert "1 of 1 passed, 100% [21%, 100%]" in only.out
        history = parsed(await place.type("genome", "history", "evoclaw", "--json"))
        assert [entry["scores"]["passed"] for entry in history] == [2, 1]
        listed = (await place.type("genome", "history", "evoclaw")).out
        assert "2 of 4 passed, 50% [15%, 85%]\n" in listed
        assert "1 of 1 passed, 100% [21%, 100%]\n" in listed
        assert (await place.type("genome", "verify", "evoclaw")).code == exits.OK


async def test_a_genome_is_evaluated_before_and_after(tmp_path: Path) -> None:
    async with seat(tmp_path) as place:
        folder = cases_in(place, "cases")
        (folder / "pirate.toml").write_text(
            'message = "hello"\n[[checks]]\nkind = "answer"\ncontains = "hello"\n'
            '[[checks]]\nkind = "max_cost"\ndollars = 1\n'
        )
        patch = tmp_path / "patch.json"
        patch.write_text('{"prompt": "Answer like a pirate."}')
        assert (await place.type("genome", "set", "evoclaw", "--file", str(patch))).code == 0
        for version, has in (("0", False), ("1", True)):
            place.up.models.asked.clear()
            ran = await place.type("eval", "evoclaw", "--genome", version, "--json")
            assert parsed(ran)["total"]["attempts"] == 1, ran.err
            system = place.up.models.asked[0].body["messages"][0]["content"]
            assert ("pirate" in system) is has


async def test_a_case_is_made_from_a_run_and_replayed_with_its_coverage(tmp_path: Path) -> None:
    async with seat(tmp_path, SETTINGS, edge=True) as place:
        client = await place.up.wait_ready()
        await place.up.wait_online(client)
        message = 'call write {"path": "a.txt", "content": "x"}\nsay written'
        run = await wait_for_state(client, await start_run(client, message))
        added = await place.type("cases", "add", run["run_id"], "--name", "kept")
        assert added.code == exits.OK, added.err
        assert (await place.type("cases", "check")).code == exits.OK
        assert (place.up.home / "cases" / "kept.jsonl").stat().st_mode & 0o077 == 0
        ran = await place.type("eval", "evoclaw")
        assert ran.code == exits.OK, (ran.out, ran.err)
        assert "100% of calls recorded" in ran.out
        assert ran.out.rstrip().endswith("coverage 100%")
        listed = await place.type("genome", "history", "evoclaw")
        assert listed.out.rstrip().endswith("1 of 1 passed, 100% [21%, 100%], coverage 100%")
        failed = await wait_for_state(client, await start_run(client, "say nothing to check"))
        refused = await place.type("cases", "add", failed["run_id"])
        assert "made no successful call" in refused.err
        again = await place.type("cases", "add", run["run_id"], "--name", "kept")
        assert "there is a case 'kept' already" in again.err


async def test_a_case_of_a_run_with_an_approval_passes_where_no_person_is(tmp_path: Path) -> None:
    async with seat(tmp_path, SUPERVISED, edge=True) as place:
        client = await place.up.wait_ready()
        await place.up.wait_online(client)
        message = (
            'call glob {"pattern": "*.txt"}\ncall bash {"command": "echo x > a.txt"}\nsay done'
        )
        run_id = await start_run(client, message)
        await wait_for_state(client, run_id, "waiting")
        (asked,) = parsed(await place.type("approvals", "--json"))
        assert (await place.type("approvals", "approve", asked["id"])).code == exits.OK
        await wait_for_state(client, run_id)
        added = parsed(await place.type("cases", "add", run_id, "--name", "kept", "--json"))
        written = place.up.home / "cases" / "kept.toml"
        assert added["path"] == str(written)
        assert 'approve = ["bash"]' in written.read_text()
        audited = ok(await client.get("/v1/audit?kind=evolution"))["items"]
        assert [(one["case"], one["run_id"]) for one in audited] == [("kept", run_id)]

        ran = await place.type("eval", "evoclaw")
        assert ran.code == exits.OK, (ran.out, ran.err)
        assert ran.out.rstrip().endswith("coverage 100%")
        written.write_text(written.read_text().replace("echo x", "echo y"))
        ran = await place.type("eval", "evoclaw")
        assert (
            "the call of bash needed an approval (bash writes or executes): the record" in ran.out
        )
        assert ran.out.rstrip().endswith("coverage 50%"), "a refused call was not answered"


async def test_an_executed_case_says_which_calls_a_person_would_approve(tmp_path: Path) -> None:
    async with seat(tmp_path, SUPERVISED) as place:
        folder = cases_in(place, "cases")
        (folder / "hand.toml").write_text(BY_HAND)
        ran = await place.type("eval", "evoclaw")
        assert ran.code == exits.FAILED
        assert (
            "the call of write needed an approval (write writes in the workspace): add" in ran.out
        )
        assert 'approve = ["write", "bash"] to the case' in ran.out
        call = 'call bash {"command": "rm -rf /usr/share"}'
        denied = f"message = '''{call}\nsay done'''\nworkspace = \"start\"\n"
        approve = 'approve = ["write", "bash"]\n'
        (folder / "hand.toml").write_text(approve + BY_HAND)
        (folder / "denied.toml").write_text(
            f'{denied}{approve}[[checks]]\nkind = "not_called"\ntool = "bash"\n'
        )
        ran = await place.type("eval", "evoclaw", "--json")
        assert ran.code == exits.OK, ran.out
        found = {one["case"]: one["denied"] for one in parsed(ran)["attempts"]}
        assert found == {"hand": 0, "denied": 1}, "what a policy denies stays denied"


async def test_a_run_with_a_record_that_makes_no_call_is_not_printed_as_covered(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path) as place:
        (place.up.home / "cases").mkdir()
        (place.up.home / "cases" / "silent.toml").write_text(
            'message = "say yes"\ntools = [{ name = "weather" }]\n'
            '[[checks]]\nkind = "answer"\nequals = "yes"\n'
        )
        ran = await place.type("eval", "evoclaw", "--repeat", "2")
        assert ran.code == exits.OK, ran.err
        row, total = ran.out.rstrip().splitlines()
        assert "no call to answer" in row and total.endswith("no call to answer")
        (entry,) = parsed(await place.type("genome", "history", "evoclaw", "--json"))
        scores = entry["scores"]
        assert (scores["recorded"], scores["coverage"]) == (2, None)
        assert (scores["host"], scores["evoclaw_version"]) == (gethostname(), VERSION)
        assert scores["model"] == place.up.shell.env["EVOCLAW_MODEL"]
        assert (await place.type("genome", "verify", "evoclaw")).code == exits.OK


async def test_a_case_is_not_made_from_a_later_message_of_a_session(tmp_path: Path) -> None:
    async with seat(tmp_path, SETTINGS, edge=True) as place:
        client = await place.up.wait_ready()
        await place.up.wait_online(client)
        first = await wait_for_state(client, await start_run(client, "say hello"))
        message = 'call glob {"pattern": "*"}\nsay listed'
        later = await start_run(client, message, session_id=first["session_id"])
        await wait_for_state(client, later)
        refused = await place.type("cases", "add", later)
        assert refused.code != exits.OK
        assert "the run continues a conversation" in refused.err and "new session" in refused.err


async def test_sealed_cases_are_opened_once_for_a_release_and_that_is_recorded(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path) as place:
        folder = cases_in(place, "cases")
        (folder / "s.toml").write_text(
            'message = "say yes"\nsplit = "sealed"\n[[checks]]\nkind = "answer"\nequals = "yes"\n'
        )
        assert "no case of the split" in (await place.type("eval", "evoclaw")).err
        without = await place.type("eval", "evoclaw", "--split", "sealed")
        assert "name it with --release" in without.err
        (folder / "t.toml").write_text(
            'message = "say yes"\n[[checks]]\nkind = "answer"\nequals = "yes"\n'
        )
        sealed = ("eval", "evoclaw", "--split", "sealed", "--release", "1.0")
        nothing = await place.type(*sealed, "--split", "train", "--cases", "t")
        assert nothing.code != exits.OK and "no sealed case is among the chosen" in nothing.err
        assert (await place.type(*sealed)).code == exits.OK
        again = await place.type(*sealed)
        assert again.code != exits.OK and "has opened the sealed cases" in again.err
        history = parsed(await place.type("genome", "history", "evoclaw", "--json"))
        assert [entry["kind"] for entry in history] == ["opening", "evaluation"]
        opening, result = (await place.type("genome", "history", "evoclaw")).out.splitlines()
        assert opening.endswith("sealed cases, release 1.0"), opening
        assert result.endswith(", release 1.0"), result


async def test_an_evaluation_of_nothing_is_refused_in_one_sentence(tmp_path: Path) -> None:
    async with seat(tmp_path) as place:
        assert "evoclaw cases add" in (await place.type("eval", "evoclaw")).err
        (place.up.home / "cases").mkdir()
        (place.up.home / "cases" / "a.toml").write_text("message = 1\n")
        checked = await place.type("cases", "check")
        assert checked.code == exits.FAILED and "a.toml" in checked.err
        unknown = await place.type("eval", "nobody")
        assert unknown.code != exits.OK and "Traceback" not in unknown.err
        (place.up.home / "cases" / "a.toml").write_text(
            'message = "say x"\nrecording = "b.jsonl"\n[[checks]]\nkind = "answer"\nequals = "x"\n'
        )
        (place.up.home / "cases" / "b.jsonl").write_text("{}\n")
        for command in (("cases", "check"), ("eval", "evoclaw")):
            broken = await place.type(*command)
            assert broken.code != exits.OK and "cannot read b.jsonl" in broken.err, broken.err
            assert "Traceback" not in broken.err
