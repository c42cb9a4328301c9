"""The texts of agents and workflows over HTTP: read, checked, saved, and no change lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.providers.scripted import Scripted, says
from tests.support.service import Client, RunningService, running_service

SETTINGS = """\
# my settings
[server]
port = 8433   # as on the other machine

# reads the post
[[agents]]
id = "post"
prompt = \"\"\"
Read it.
[not a table]
\"\"\"
capabilities = ["file_read"]   # no more

[agents.limits]
max_turns = 3

# writes letters
[[agents]]
id = "letters"
capabilities = [
  "file_write",
]

[memory]
top_k = 3
"""
WORKFLOW = """\
# every morning
description = "Asks first."

[[steps]]
name = "sure"
kind = "approval"
message = "Sure?"
"""
AGENT = "/v1/agents/post/definition"
NIGHTLY = "/v1/workflows/nightly/definition"


async def owner_of(up: RunningService, folder: Path) -> Client:
    (folder / "evoclaw.toml").write_text(SETTINGS)
    (folder / "workflows").mkdir(exist_ok=True)
    (folder / "workflows" / "nightly.toml").write_text(WORKFLOW)
    return await up.client_with("*")


async def test_an_agent_is_read_with_its_comments_and_saved_without_touching_the_rest(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as up:
        owner = await owner_of(up, tmp_path)
        read = (await owner.get(AGENT)).json
        assert read["text"].startswith("# reads the post\n[[agents]]\n")
        assert read["text"].endswith("max_turns = 3")

        text = read["text"].replace("max_turns = 3", "max_turns = 4  # one more")
        saved = await owner.ask("PUT", AGENT, {"text": text, "sha256": read["sha256"]})
        assert saved.status == 200, saved.body
        assert saved.json["saved"] and saved.json["reload"]["needs_restart"] == []
        assert (tmp_path / "evoclaw.toml").read_text() == SETTINGS.replace(
            "max_turns = 3", "max_turns = 4  # one more"
        )
        assert (await owner.get(AGENT)).json["sha256"] == saved.json["sha256"]


async def test_an_agent_is_created_checked_without_saving_and_deleted(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        owner = await owner_of(up, tmp_path)
        path, text = "/v1/agents/cook/definition", '[[agents]]\nid = "cook"\n'
        tried = await owner.ask("PUT", path, {"text": text, "dry_run": True})
        assert tried.json["saved"] is False
        assert (tmp_path / "evoclaw.toml").read_text() == SETTINGS

        made = await owner.ask("PUT", path, {"text": text})
        assert made.status == 200, made.body
        assert (tmp_path / "evoclaw.toml").read_text() == f"{SETTINGS}\n{text}"
        again = await owner.ask("PUT", path, {"text": text})
        assert (again.status, again.code) == (409, "definition_changed")
        unseen = await owner.ask("DELETE", "/v1/agents/cook?sha256=0")
        assert unseen.status == 409
        gone = await owner.ask("DELETE", f"/v1/agents/cook?sha256={made.json['sha256']}")
        assert gone.status == 200, gone.body
        assert (tmp_path / "evoclaw.toml").read_text().strip() == SETTINGS.strip()
        assert (await owner.get(path)).status == 404


@pytest.mark.parametrize(
    ("old", "new", "line", "setting", "message"),
    [
        ("max_turns = 3", "max_turns = 300", 11, "limits.max_turns", "Expected `int` <= 100"),
        ("max_turns = 3", "max_turn = 3", 11, "limits.max_turn", "did you mean 'max_turns'?"),
        ('"file_read"', '"file_reed"', 8, "capabilities", "file_reed"),
        ("capabilities = [", "capabilities [", 8, "", "not TOML"),
        ('id = "post"', 'id = "mail"', 0, "id", "must stay 'post'"),
        ("[agents.limits]", "[server]", 0, "", "one [[agents]] table"),
        ('id = "post"', 'id = "post"\nprompt_file = "/etc/hostname"', 0, "prompt_file", "file"),
    ],
)
async def test_an_invalid_agent_is_refused_with_its_line_and_setting(
    tmp_path: Path, old: str, new: str, line: int, setting: str, message: str
) -> None:
    async with running_service(tmp_path) as up:
        owner = await owner_of(up, tmp_path)
        read = (await owner.get(AGENT)).json
        assert old in read["text"]
        body = {"text": read["text"].replace(old, new), "sha256": read["sha256"]}
        refused = await owner.ask("PUT", AGENT, body)

        assert (refused.status, refused.code) == (409, "invalid_definition"), refused.body
        error = refused.json["error"]
        assert message in error["message"]
        assert error["details"] == {"line": line, "setting": setting}
        assert (tmp_path / "evoclaw.toml").read_text() == SETTINGS


async def test_a_change_on_disk_since_the_text_was_loaded_is_not_overwritten(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as up:
        owner = await owner_of(up, tmp_path)
        agent, flow = (await owner.get(AGENT)).json, (await owner.get(NIGHTLY)).json
        settings, file = tmp_path / "evoclaw.toml", tmp_path / "workflows" / "nightly.toml"
        settings.write_text(SETTINGS.replace("Read it.", "Read all of it."))
        file.write_text(WORKFLOW.replace("Sure?", "Really?"))
        for path, read in ((AGENT, agent), (NIGHTLY, flow)):
            refused = await owner.ask("PUT", path, read)
            assert (refused.status, refused.code) == (409, "definition_changed"), refused.body
            assert "has changed since you loaded it" in refused.json["error"]["message"]
        schedule = {"sha256": flow["sha256"], "cron": "@daily"}
        assert (await owner.ask("PUT", "/v1/workflows/nightly/schedule", schedule)).status == 409
        assert "Read all of it." in settings.read_text() and "Really?" in file.read_text()
        # A change elsewhere in the file is no conflict, and stays.
        settings.write_text(SETTINGS.replace("top_k = 3", "top_k = 4"))
        assert (await owner.ask("PUT", AGENT, agent)).status == 200
        assert "top_k = 4" in settings.read_text()


async def test_only_an_admin_reads_and_only_a_person_with_admin_changes_definitions(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as up:
        await owner_of(up, tmp_path)
        program = await up.client_with("admin")
        person = await up.client_with("human", "agents:invoke", "workflows:read")
        other = await up.client_with("*", tenant="acme")
        for path in (AGENT, NIGHTLY):
            read = (await program.get(path)).json
            for caller in (program, person, other):
                refused = await caller.ask("PUT", path, read)
                assert refused.status == 403, refused.body
            for caller in (person, other):
                assert (await caller.get(path)).status == 403
        assert (await program.ask("DELETE", "/v1/agents/post?sha256=0")).status == 403
        assert (await program.ask("DELETE", "/v1/workflows/nightly?sha256=0")).status == 403


async def test_a_definition_with_a_secret_is_neither_shown_nor_saved(tmp_path: Path) -> None:
    key = "sk-ant-api03-" + "Ab3dE6gH9jK2" * 7
    async with running_service(tmp_path) as up:
        owner = await owner_of(up, tmp_path)
        read = (await owner.get(AGENT)).json
        body = {"text": read["text"].replace("Read it.", key), "sha256": read["sha256"]}
        refused = await owner.ask("PUT", AGENT, body)
        assert (refused.status, refused.code) == (409, "invalid_definition")
        (tmp_path / "evoclaw.toml").write_text(SETTINGS.replace("Read it.", key))
        hidden = await owner.get(AGENT)
        assert (hidden.status, hidden.code) == (409, "contains_secret")
        assert key not in hidden.body.decode()


@pytest.mark.parametrize("broken", ["[a b]\n", "port = \n[[agents]]\n", '[[agents]]\nid = "post\n'])
async def test_a_settings_file_that_is_not_toml_is_reported_and_not_changed(
    tmp_path: Path, broken: str
) -> None:
    async with running_service(tmp_path) as up:
        owner = await owner_of(up, tmp_path)
        read = (await owner.get(AGENT)).json
        (tmp_path / "evoclaw.toml").write_text(SETTINGS + broken)
        refused = await owner.ask("PUT", AGENT, read)
        assert (refused.status, refused.code) == (409, "invalid_definition"), refused.body
        assert "not TOML" in refused.json["error"]["message"]
        assert (tmp_path / "evoclaw.toml").read_text() == SETTINGS + broken


async def test_a_workflow_is_created_edited_scheduled_and_deleted(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        owner = await owner_of(up, tmp_path)
        text = '[[steps]]\nname = "go"\nkind = "workflow"\nworkflow = "nightly"\n'
        made = await owner.ask("PUT", "/v1/workflows/outer/definition", {"text": text})
        assert made.status == 200, made.body
        listed = {flow["name"]: flow for flow in (await owner.get("/v1/workflows")).json["items"]}
        assert listed["outer"]["is_file"] and "is_file" not in listed["greet"]

        read = (await owner.get(NIGHTLY)).json
        schedule = {"sha256": read["sha256"], "cron": "0 7 * * 1-5", "timezone": "Europe/Berlin"}
        saved = await owner.ask("PUT", "/v1/workflows/nightly/schedule", schedule)
        assert saved.status == 200, saved.body
        assert saved.json["text"].startswith(WORKFLOW)
        (shown,) = [
            flow for flow in (await owner.get("/v1/workflows")).json["items"]
            if flow["name"] == "nightly"
        ]  # fmt: skip
        assert shown["schedule"] == {"cron": "0 7 * * 1-5", "timezone": "Europe/Berlin"}
        assert shown["next_at"] > 0
        wrong = {**schedule, "sha256": saved.json["sha256"], "cron": "0 25 * * *"}
        refused = await owner.ask("PUT", "/v1/workflows/nightly/schedule", wrong)
        assert (refused.status, refused.code) == (409, "invalid_definition"), refused.body
        none = {"sha256": saved.json["sha256"]}
        stopped = await owner.ask("PUT", "/v1/workflows/nightly/schedule", none)
        assert "schedule" not in stopped.json["text"]

        used = f"/v1/workflows/nightly?sha256={stopped.json['sha256']}"
        refused = await owner.ask("DELETE", used)
        assert "is a step of outer" in refused.json["error"]["message"]
        gone = await owner.ask("DELETE", f"/v1/workflows/outer?sha256={made.json['sha256']}")
        assert gone.status == 204
        assert (await owner.ask("DELETE", used)).status == 204
        assert not list((tmp_path / "workflows").iterdir())


@pytest.mark.parametrize(
    ("text", "line", "setting", "message"),
    [
        ('[[steps]]\nname = "a"\nkind = "tol"\n', 3, "steps.kind", "did you mean 'tool'?"),
        ("[[steps]\n", 1, "", "not TOML"),
        ('name = "other"\n[[steps]]\nname = "a"\nkind = "wait"\nseconds = 1\n', 0, "name", "stay"),
        (
            '[[steps]]\nname = "a"\nkind = "workflow"\nworkflow = "new"\n',
            4,
            "steps.workflow",
            "self",
        ),
    ],
)
async def test_an_invalid_workflow_is_refused_with_its_line_and_setting(
    tmp_path: Path, text: str, line: int, setting: str, message: str
) -> None:
    async with running_service(tmp_path) as up:
        owner = await owner_of(up, tmp_path)
        refused = await owner.ask("PUT", "/v1/workflows/new/definition", {"text": text})

        assert (refused.status, refused.code) == (409, "invalid_definition"), refused.body
        error = refused.json["error"]
        assert message in error["message"], error
        assert error["details"] == {"line": line, "setting": setting}
        assert not (tmp_path / "workflows" / "new.toml").exists()


async def test_an_invalid_workflow_file_is_read_and_corrected(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        owner = await owner_of(up, tmp_path)
        (tmp_path / "workflows" / "nightly.toml").write_text(
            WORKFLOW.replace("approval", "aproval")
        )
        read = (await owner.get(NIGHTLY)).json
        saved = await owner.ask("PUT", NIGHTLY, {"text": WORKFLOW, "sha256": read["sha256"]})
        assert saved.status == 200, saved.body
        flows = (await owner.get("/v1/workflows")).json["items"]
        assert not [flow for flow in flows if flow.get("problem")]


async def test_a_workflow_name_cannot_lead_to_another_folder(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        owner = await owner_of(up, tmp_path)
        for name in ("..", "a.b", "a:b", "..%2Fevoclaw"):
            path = f"/v1/workflows/{name}/definition"
            assert (await owner.ask("PUT", path, {"text": WORKFLOW})).status in (404, 409, 422)
        assert (tmp_path / "evoclaw.toml").read_text() == SETTINGS


async def test_a_model_is_checked_with_one_request_and_the_result_is_remembered(
    tmp_path: Path,
) -> None:
    refused = ProviderError(ProviderErrorKind.AUTH_ERROR, "the key is wrong")
    async with running_service(tmp_path, Scripted(refused, says("Hello."))) as up:
        owner = await up.client_with("*")
        path = "/v1/agents/helper/model-check"
        assert (await owner.get(path)).json["ok"] is None
        wrong = (await owner.post(path)).json
        assert (wrong["ok"], wrong["problem"]) == (False, "the key is wrong")
        right = (await owner.post(path)).json
        assert (right["ok"], right["answer"]) == (True, "Hello.")
        user = await up.client_with("agents:invoke")
        assert (await user.get(path)).json == right
        assert (await user.post(path)).status == 403


async def test_runs_are_counted_and_listed_by_agent(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(says("one"), says("two"))) as up:
        ann = await up.client_with("runs:read", "runs:write")
        for message in ("first", "second"):
            run = (await ann.post("/v1/runs", {"message": message})).json
            await ann.until(f"/v1/runs/{run['run_id']}", "state", "ended")
        (counted,) = (await ann.get("/v1/run-counts")).json["items"]
        assert (counted["agent"], counted["runs"]) == ("helper", 2)
        assert counted["last_at"] > 0
        listed = (await ann.get("/v1/runs?agent=helper&limit=1")).json
        assert [run["asked"] for run in listed["items"]] == ["second"]
        rest = (await ann.get(f"/v1/runs?agent=helper&before={listed['next']}")).json
        assert [run["asked"] for run in rest["items"]] == ["first"]
        assert (await ann.get("/v1/runs?agent=nobody")).json["items"] == []
        bob = await up.client_with("runs:read", user="bob")
        assert (await bob.get("/v1/run-counts")).json["items"] == []
