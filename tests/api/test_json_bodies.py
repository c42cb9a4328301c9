"""Bodies that no parser reads are refused by every route, never an internal error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evoclaw.api.app import api_routes
from tests.support.chat_service import serve_agents

BODIES = {
    "two thousand lists": b"[" * 2_000,
    "two thousand objects": b'{"a":' * 2_000,
    "two thousand lists in a field": b'{"model":"lead","messages":' + b"[" * 2_000,
    "not UTF-8": b'{"a": "\xff"}',
    "half a pair": b'{"model": "\\ud83d"}',
    "nothing": b"",
}


@pytest.mark.parametrize("what", BODIES)
async def test_no_route_fails_on_a_body_that_cannot_be_parsed(what: str, tmp_path: Path) -> None:
    tried, failed = 0, list[str]()
    async with serve_agents(tmp_path) as house, await house.http("admin") as http:
        for route in api_routes():
            for method in route.http_methods & {"POST", "PUT", "PATCH"}:
                path = re.sub(r"\{[^}]*\}", "x", min(route.paths))
                headers = {"content-type": "application/json"}
                answer = await http.request(method, path, content=BODIES[what], headers=headers)
                tried += 1
                if answer.status_code >= 500 and answer.status_code != 503:
                    failed.append(f"{method} {path}: {answer.status_code}")
        answer = await http.post("/v1/chat/completions", content=BODIES[what])
    assert failed == []
    assert tried > 30
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
