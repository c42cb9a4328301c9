"""The commands against the real service: its routes, its runs, its store, over a real socket."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from evoclaw.core.messages import Reply
from evoclaw.core.ports import Policy
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.command_line import Shell, Typed
from tests.support.service import RunningService, running_service
from tests.support.terminal import terminal

WORK = calls(("work", {"what": "it"}))


@asynccontextmanager
async def up(
    folder: Path, *replies: Reply | Any, rules: Policy | None = None
) -> AsyncGenerator[tuple[RunningService, Shell]]:
    """The service, and a shell whose commands find it."""
    home, workspace, data = folder / "home", folder / "work", folder / "data"
    for one in (home, workspace, data):
        one.mkdir()
    provider = Scripted(*replies) if replies else None
    async with running_service(data, provider, rules=rules) as service:
        left = home / ".evoclaw" / "api.json"
        left.parent.mkdir(mode=0o700)
        left.write_text(json.dumps({"url": service.url, "token": await service.house.token()}))
        left.chmod(0o600)
        yield service, Shell(home, workspace)


def parsed(ran: Typed) -> Any:
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


async def test_a_piped_chat_is_a_session_of_the_service(tmp_path: Path) -> None:
    async with up(tmp_path, says("Good morning."), WORK, says("Worked.")) as (_, here):
        ran = await here.type("chat", stdin=b"hello\nwork\n")
        sessions = parsed(await here.type("sessions", "--json"))
        (session,) = sessions
        shown = await here.type("sessions", "show", session["id"])
        runs = parsed(await here.type("runs", "--json"))
    assert (ran.code, ran.out) == (0, "Good morning.\nWorked.\n")
    assert '▶ work what="it"' in ran.err
    assert "user     hello" in shown.out and "agent    Worked." in shown.out
    assert [run["asked"] for run in runs] == ["work", "hello"]


async def test_chat_at_a_terminal_answers_approvals_and_questions(tmp_path: Path) -> None:
    asks = calls(("question", {"question": "Which one?", "options": ["red", "blue"]}))
    rules = Autonomy(Level.SUPERVISED)
    async with up(tmp_path, WORK, asks, says("Done."), rules=rules) as (service, here):
        async with terminal(here, "chat") as seen:
            await seen.send_line("go")
            assert "─ work wants to run ─" in await seen.until("Allow?")
            seen.type("y")
            assert "2. blue" in await seen.until("own words:")
            seen.type("2\n")
            await seen.expect("Done.\n")
            await seen.send_line("/quit")
            assert await seen.wait_exit() == 0
        assert service.house.ran == ["it"]


async def test_a_denied_call_does_not_run_and_the_model_gets_the_reason(tmp_path: Path) -> None:
    rules = Autonomy(Level.SUPERVISED)
    async with up(tmp_path, WORK, says("As you wish."), rules=rules) as (service, here):
        async with terminal(here, "chat") as seen:
            await seen.send_line("go")
            await seen.until("Allow?")
            seen.type("n")
            await seen.until("Why not?")
            seen.type("not today\r")
            await seen.expect("As you wish.")
            await seen.until("ready")
        assert service.house.ran == []


async def test_a_run_is_steered_watched_cancelled_and_its_records_replay(tmp_path: Path) -> None:
    async with up(tmp_path, WORK, says("Heard."), WORK, says("never")) as (service, here):
        service.house.may_go_on.clear()
        async with terminal(here, "chat") as seen:
            await seen.send_line("go")
            await seen.expect("▶ work")
            seen.type("and in blue\n")
            run = (await (await service.client_with()).get("/v1/runs")).json["items"][0]["run_id"]
            said = await here.type("runs", "steer", run, "and in red")
            assert said.code == 0, said.err
            service.house.may_go_on.set()
            await seen.expect("Heard.")
            service.house.may_go_on.clear()
            await seen.send_line("again")
            await seen.expect("▶ work")
            last = parsed(await here.type("runs", "list", "--state", "running", "--json"))
            done = await here.type("runs", "cancel", last[0]["run_id"])
            await seen.expect("cancelled · ")
        watched = await here.type("runs", "watch", last[0]["run_id"])
        kept = await here.type("runs", "records", run, "-o", "run.jsonl")
        replayed = await here.type("replay", "run.jsonl")
        shown = await here.type("runs", "show", run)
        twice = await here.type("runs", "cancel", run)
    assert done.code == 0 and watched.code == 130
    assert kept.code == 0 and replayed.code == 0, replayed.err
    text = (here.workspace / "run.jsonl").read_text()
    assert "and in blue" in text and "and in red" in text
    assert (here.workspace / "run.jsonl").stat().st_mode & 0o077 == 0
    assert "completed" in shown.out and "answer: Heard." in shown.out
    assert (twice.code, twice.err) == (1, f"{run}: already ended\n")


async def test_sessions_are_renamed_branched_and_deleted(tmp_path: Path) -> None:
    async with up(tmp_path, says("One."), says("Two.")) as (_, here):
        await here.type("chat", "--session", "My work", stdin=b"first\n")
        renamed = await here.type("sessions", "rename", "My work", "Our work")
        made = parsed(await here.type("sessions", "branch", "Our work", "--at", "1", "--json"))
        kept = await here.type("sessions", "show", made["id"])
        refused = await here.type("sessions", "delete", "Our work")
        gone = await here.type("sessions", "delete", made["id"], "--yes")
        listed = parsed(await here.type("sessions", "--json"))
        none = await here.type("sessions", "show", "nothing")
    assert renamed.code == gone.code == 0
    assert "first" in kept.out and "One." not in kept.out
    assert (refused.code, none.code) == (2, 2) and "--yes" in refused.err
    assert [one["title"] for one in listed] == ["Our work"]


async def test_status_metrics_and_logs_show_runs_and_calls(tmp_path: Path) -> None:
    async with up(tmp_path, WORK, says("Done.")) as (_, here):
        await here.type("chat", stdin=b"go\n")
        status = await here.type("status")
        facts = parsed(await here.type("status", "--json"))
        (run,) = parsed(await here.type("runs", "--json"))
        tools = await here.type("logs", "--run", run["run_id"], "--filter=tool")
        whole = await here.type("logs", "--run", run["run_id"], "--follow")
        audit = await here.type("logs")
        raw = await here.type("metrics", "--raw")
        figures = await here.type("metrics", "--json")
    assert status.code == 0 and "ready (runs ok, store ok)" in status.out
    assert facts["runs"] == {"running": 0, "queued": 0, "waiting": 0}
    assert facts["edges"] == {"online": [], "offline": [], "new_tools": [], "default": ""}
    happened = [line.split()[2] for line in tools.out.splitlines()]
    assert happened == ["call_judged", "call_started", "call_finished"]
    assert "run_finished" in whole.out.splitlines()[-1]
    assert (audit.code, audit.err) == (0, "the audit log is empty\n")
    assert "evoclaw_http_responses_total" in raw.out
    assert parsed(figures)["watchers"] == 0


async def test_a_token_with_fewer_scopes_is_refused_with_an_explanation(tmp_path: Path) -> None:
    async with up(tmp_path, says("Hi.")) as (service, here):
        here.env["EVOCLAW_URL"] = service.url
        here.env["EVOCLAW_TOKEN"] = await service.house.token("admin")
        made = parsed(
            await here.type("token", "new", "--scope", "runs:read", "--name", "ci", "--json")
        )
        human = await here.type("token", "new", "--scope", "human")
        listed = await here.type("token", "list")
        here.env["EVOCLAW_TOKEN"] = made["token"]
        may_not = await here.type("chat", stdin=b"hello\n")
        status = parsed(await here.type("status", "--json"))
        here.env["EVOCLAW_TOKEN"] = await service.house.token("admin")
        revoked = await here.type("token", "revoke", made["id"])
        here.env["EVOCLAW_TOKEN"] = made["token"]
        shut_out = await here.type("runs")
    assert human.code == 2 and "cannot grant scopes that you do not hold" in human.err
    assert "ci" in listed.out and made["token"] not in listed.out
    assert "scope" in may_not.err and may_not.code != 0
    assert "unknown" in status["edges"] and "unknown" not in status["runs"]
    assert revoked.code == 0 and "evoclaw token new" in shut_out.err


async def test_status_of_a_stopped_service_fails(tmp_path: Path) -> None:
    async with up(tmp_path) as (_, here):
        pass
    told = await here.type("status")
    facts = await here.type("status", "--json")
    assert told.code == facts.code == 1
    assert "evoclaw up" in told.err
    assert json.loads(facts.out)["up"] is False
