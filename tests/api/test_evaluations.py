"""The routes of evaluations: started, watched, cancelled, interrupted; and cases from runs."""

from __future__ import annotations

from pathlib import Path
from socket import gethostname
from typing import Any

import msgspec

from evoclaw.core.genome import CONFIGURED, Genome
from evoclaw.core.messages import JSON
from evoclaw.core.version import VERSION
from evoclaw.evolution.evaluation import wilson
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.service import Client, running_service

PATH = "/v1/agents/helper/evaluations"
CASE = """
message = "Is it sunny?"
split = "{split}"
tools = [{{ name = "weather" }}]

[[checks]]
kind = "answer"
contains = "sunny"
"""


def write_case(folder: Path, name: str, split: str = "train") -> None:
    (folder / "cases").mkdir(exist_ok=True)
    (folder / "cases" / f"{name}.toml").write_text(CASE.format(split=split))


async def started(client: Client, **body: Any) -> str:
    answer = await client.post(PATH, body)
    assert answer.status == 202, answer.json
    assert answer.json["state"] == "running"
    return f"{PATH}/{answer.json['id']}"


async def test_an_evaluation_runs_in_the_background_and_its_result_is_in_the_lineage(
    tmp_path: Path,
) -> None:
    write_case(tmp_path, "one")
    write_case(tmp_path, "two", "validation")
    async with running_service(tmp_path) as up:
        ann = await up.client_with("*")
        path = await started(ann, repeat=2)
        done = await ann.until(path, "state", "completed")
        assert (done["runs"], done["done"], done["passed"]) == (4, 4, 0)
        assert (done["version"], done["candidate"], done["by"]) == (0, None, "ann")
        problem = {"case": "one", "problem": "the answer does not contain 'sunny'"}
        assert problem in done["problems"]
        await up.house.genomes.change("helper", {"prompt": "It is sunny."}, by="ann")
        await ann.until(await started(ann, cases=["one"]), "state", "completed")
        old = await started(ann, version=0, splits=["validation"])
        await ann.until(old, "state", "completed")

        found = (await ann.get(PATH)).json
        assert [item["state"] for item in found["items"]] == ["completed"] * 3
        results = found["results"]
        rates = [(one["version"], one["total"]["passed"], list(one["cases"])) for one in results]
        assert rates == [(0, 0, ["one", "two"]), (1, 1, ["one"]), (0, 0, ["two"])]
        assert results[0]["number"] == done["result"] and results[0]["evaluation"] == done["id"]
        ran = {key: results[0][key] for key in ("recorded", "coverage", "model", "host")}
        assert ran == {
            "recorded": 4, "coverage": None, "model": "scripted/model", "host": gethostname(),
        }  # fmt: skip
        assert results[0]["evoclaw_version"] == VERSION
        assert results[0]["total"]["low"] == 0.0 < results[0]["total"]["high"] < 1.0
        overview = (await ann.get("/v1/evolution")).json["items"][0]
        assert overview["result"]["number"] == results[1]["number"], "that of the current version"
        assert (overview["version"], overview["evaluating"]) == (1, False)
        up.house.audit.flush()
        audited = (await ann.get("/v1/audit?kind=evolution")).json["items"]
        assert [one["decision"] for one in audited] == ["start"] * 3


async def test_a_candidate_is_evaluated_before_it_is_current(tmp_path: Path) -> None:
    write_case(tmp_path, "one")
    async with running_service(tmp_path) as up:
        ann = await up.client_with("*")
        proposed = await up.house.genomes.propose("helper", {"prompt": "sunny"}, by="search")
        assert proposed is not None
        done = await ann.until(await started(ann, candidate=proposed.number), "state", "completed")
        assert (done["version"], done["candidate"], done["passed"]) == (None, 1, 1)
        (result,) = (await ann.get(PATH)).json["results"]
        assert (result["version"], result["candidate"]) == (None, 1)
        assert (await ann.post(PATH, {"candidate": 9})).status == 404


async def test_what_a_proposer_tried_is_the_result_of_no_version_or_candidate(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as up:
        ann, lineage = await up.client_with("*"), up.house.genomes

        async def evaluated(genome: Genome, passed: int, by: str, **more: JSON) -> int:
            scores = {**msgspec.to_builtins(wilson(passed, 6)), **more}
            return (await lineage.add_evaluation("helper", genome, scores, by=by)).number

        async def overview() -> Any:
            return (await ann.get("/v1/evolution")).json["items"][0]["result"]

        tuned = Genome(prompt="sunny")
        await evaluated(CONFIGURED, 0, "gepa")
        await evaluated(tuned, 6, "gepa")
        assert await overview() is None
        by_ann = await evaluated(CONFIGURED, 1, "ann")
        named = await evaluated(CONFIGURED, 2, "gepa", evaluation="e1")
        await lineage.propose("helper", {"prompt": "sunny"}, by="gepa")
        await evaluated(tuned, 5, "skills")
        await evaluated(tuned, 4, "ann", coverage=None, recorded=6)
        assert (await overview())["number"] == named, "a user may be named as a proposer"
        results = (await ann.get(PATH)).json["results"]
        shown = [(one["by"], one["version"], one["candidate"]) for one in results]
        assert shown == [
            ("gepa", None, None), ("gepa", None, None), ("ann", 0, None), ("gepa", 0, None),
            ("skills", None, None), ("ann", None, by_ann + 2),
        ]  # fmt: skip
        assert [one["recorded"] for one in results] == [None] * 5 + [6]

        await lineage.change("helper", {"prompt": "sunny"}, by="ann")
        assert (await overview())["total"]["passed"] == 4
        await lineage.roll_back("helper", by="ann")
        assert (await overview())["number"] == named, "that of the restored genome"


async def test_one_evaluation_of_an_agent_at_a_time_which_can_be_cancelled(
    tmp_path: Path,
) -> None:
    write_case(tmp_path, "one")
    async with running_service(tmp_path) as up:
        ann = await up.client_with("*")
        up.house.may_go_on.clear()
        path = await started(ann)
        assert (await ann.get("/v1/evolution")).json["items"][0]["evaluating"]
        second = await ann.post(PATH, {})
        assert (second.status, second.code) == (409, "busy")
        cancelled = await ann.post(f"{path}/cancel")
        assert (cancelled.status, cancelled.json["state"]) == (200, "cancelled")
        assert cancelled.json["error"] == "Cancelled by ann." and cancelled.json["result"] is None
        again = await ann.post(f"{path}/cancel")
        assert (again.status, again.code) == (409, "ended")
        assert (await ann.get(PATH)).json["results"] == []
        up.house.may_go_on.set()
        await ann.until(await started(ann), "state", "completed")


async def test_an_evaluation_is_reported_as_interrupted_if_the_service_stops(
    tmp_path: Path,
) -> None:
    write_case(tmp_path, "one")
    async with running_service(tmp_path) as up:
        up.house.may_go_on.clear()
        ann = await up.client_with("*")
        path = await started(ann)
    async with running_service(tmp_path) as up:
        ann = await up.client_with("*")
        found = (await ann.get(path)).json
        assert (found["state"], found["result"]) == ("interrupted", None)
        assert "Start it again" in found["error"]
        await ann.until(await started(ann), "state", "completed")


async def test_wrong_requests_for_evaluations_are_refused_with_the_reason(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with("*")

        async def refused(body: JSON) -> tuple[int, str]:
            answer = await ann.post(PATH, body)
            return answer.status, str(answer.json["error"]["message"])

        status, text = await refused({})
        assert status == 422 and "evoclaw cases add" in text
        write_case(tmp_path, "one")
        write_case(tmp_path, "last", "sealed")
        status, text = await refused({"cases": ["nowhere"]})
        assert status == 422 and "there is no case 'nowhere'" in text
        wrongs: list[JSON] = [{"repeat": 0}, {"cases": ["../x"]}, {"splits": []}, {"unknown": 1}]
        for wrong in wrongs:
            assert (await refused(wrong))[0] == 422, wrong
        status, text = await refused({"version": 0, "candidate": 1})
        assert status == 422 and "not both" in text
        assert (await refused({"version": 5}))[0] == 404
        status, text = await refused({"splits": ["sealed"]})
        assert status == 422 and "release" in text
        assert (await ann.get(f"{PATH}/nothing")).status == 404
        assert (await ann.post(f"{PATH}/nothing/cancel")).status == 404
        assert (await ann.post("/v1/agents/nobody/evaluations", {})).status == 404
        assert (await ann.post("/v1/stops", {"kind": "all", "reason": "fire"})).status < 300
        status, text = await refused({})
        assert status == 409 and "a person stopped everything (fire)" in text


async def test_sealed_cases_are_opened_by_a_person_once_for_each_release(tmp_path: Path) -> None:
    write_case(tmp_path, "last", "sealed")
    body = {"splits": ["sealed"], "release": "1.0"}
    async with running_service(tmp_path) as up:
        program = await up.client_with("evolution:read", "evolution:write")
        assert (await program.post(PATH, body)).status == 403
        ann = await up.client_with("*")
        write_case(tmp_path, "one")
        nothing = await ann.post(PATH, {**body, "splits": ["train", "sealed"], "cases": ["one"]})
        assert nothing.status == 422
        assert "no sealed case is among the chosen" in nothing.json["error"]["message"]
        await ann.until(await started(ann, **body), "state", "completed")
        second = await ann.until(await started(ann, **body), "state", "failed")
        assert "opened the sealed cases" in second["error"]
        (result,) = (await ann.get(PATH)).json["results"]
        assert result["release"] == "1.0"


async def test_evaluations_need_scopes_of_their_own(tmp_path: Path) -> None:
    write_case(tmp_path, "one")
    async with running_service(tmp_path) as up:
        reader = await up.client_with("evolution:read")
        program = await up.client_with("evolution:read", "evolution:write")
        other = await up.client_with("runs:read", "human")
        stranger = await up.client_with("*", tenant="acme")
        for client in (reader, other, stranger):
            assert (await client.post(PATH, {})).status == 403
            assert (await client.post("/v1/cases", {"run": "r1"})).status == 403
        for client in (other, stranger):
            assert (await client.get(PATH)).status == 403
        path = await started(program)
        await reader.until(path, "state", "completed")
        assert (await program.post("/v1/cases", {"run": "r1"})).status == 403, "not a person"


async def test_a_case_is_made_from_a_run_and_evaluated(tmp_path: Path) -> None:
    provider = Scripted(calls(("work", {"what": "tea"})), says("done"), says("hello"))
    async with running_service(tmp_path, provider) as up:
        ann = await up.client_with("*")
        runs: list[str] = []
        for message in ("make tea", "hello"):
            run = (await ann.post("/v1/runs", {"message": message})).json["run_id"]
            await ann.until(f"/v1/runs/{run}", "state", "ended")
            runs.append(run)
        body = {"run": runs[0], "name": "tea", "split": "validation"}
        made = await ann.post("/v1/cases", body)
        assert (made.status, made.json) == (
            201,
            {"name": "tea", "split": "validation", "agent": "helper", "recorded": True,
             "checks": 1, "path": str(tmp_path / "cases" / "tea.toml")},
        )  # fmt: skip
        assert [one["name"] for one in (await ann.get("/v1/cases")).json["items"]] == ["tea"]
        twice = await ann.post("/v1/cases", body)
        assert twice.status == 422 and "already" in twice.json["error"]["message"]
        silent = await ann.post("/v1/cases", {"run": runs[1]})
        assert silent.status == 422 and "no successful call" in silent.json["error"]["message"]
        assert (await ann.post("/v1/cases", {"run": "nothing"})).status == 404
        assert (await ann.post("/v1/cases", {**body, "name": "../x"})).status == 422
        done = await ann.until(await started(ann), "state", "completed")
        assert done["problems"] == [{"case": "tea", "problem": "work was called 0 times"}]
