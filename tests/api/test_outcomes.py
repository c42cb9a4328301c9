"""The outcome of a run over HTTP: what its records say, and what a person said of it."""

from __future__ import annotations

from pathlib import Path

from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.service import running_service


async def test_the_outcome_of_a_run_has_its_errors_corrections_and_rating(tmp_path: Path) -> None:
    provider = Scripted(calls(("work", {"what": "it"})), calls(("nothing", {})), says("Done."))
    rules = Autonomy(Level.SUPERVISED)
    async with running_service(tmp_path, provider, rules=rules) as up:
        ann = await up.client_with()
        run = (await ann.post("/v1/runs", {"message": "go"})).json
        path = f"/v1/runs/{run['run_id']}"
        await ann.until(path, "state", "waiting")
        (waiting,) = (await ann.get("/v1/approvals")).json["items"]
        answer = {"decision": "deny", "reason": "not today"}
        assert (await ann.post(f"/v1/approvals/{waiting['id']}/answer", answer)).status == 200
        await ann.until(path, "state", "ended")
        await ann.post(f"{path}/rating", {"verdict": "bad", "reason": "lazy"})
        found = (await ann.get(f"{path}/outcome")).json
        outcome = found["outcome"]
        assert outcome["errors"] == {"not_found": 1, "permission_denied": 1}
        assert (outcome["denied"], outcome["stop"], outcome["genome"]) == (1, "completed", "")
        assert [one["kind"] for one in outcome["corrections"]] == ["deny"]
        assert "not today" in outcome["corrections"][0]["text"]
        assert (found["rating"]["verdict"], found["rating"]["reason"]) == ("bad", "lazy")
        bob = await up.client_with("runs:read", user="bob")
        assert (await bob.get(f"{path}/outcome")).status == 404
