"""The OpenAPI document and the service agree: requests made from the one, sent to the other.

The usual few hundred are always the same; `EVOCLAW_SCHEMA_CASES=1000` sends so many others.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from evoclaw.api.settings import ServerSettings
from evoclaw.providers.scripted import Scripted, says
from tests.support.properties import examples
from tests.support.service import running_service

CASES = int(os.environ.get("EVOCLAW_SCHEMA_CASES", examples(200)))
TOKENS: dict[str, str] = {}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The service in a thread of its own; its address."""
    up, over = threading.Event(), asyncio.Event()
    found: dict[str, Any] = {}

    async def serve(folder: Path) -> None:
        chosen = ServerSettings(
            port=0, requests_per_minute=1_000_000, burst=1_000_000, stop_within_s=1,
            failures_per_minute=1_000_000, body_seconds=5,
        )  # fmt: skip
        answers = Scripted(*[says('{"result": "ok"}')] * 20_000)
        async with running_service(folder, answers, settings=chosen, limit=None) as house:
            TOKENS["*"] = await house.house.token("*")
            found["url"], found["loop"] = house.url, asyncio.get_running_loop()
            up.set()
            await over.wait()

    thread = threading.Thread(
        target=lambda: asyncio.run(serve(tmp_path_factory.mktemp("service"))), daemon=True
    )
    thread.start()
    assert up.wait(20)
    yield found["url"]
    found["loop"].call_soon_threadsafe(over.set)
    thread.join(20)


@pytest.fixture(scope="module")
def document(service: str) -> Any:
    import schemathesis

    # A stream may never end: its first event says enough.
    made: Any = schemathesis.Config
    config = made.from_dict({"max-stream-events": 1})
    return schemathesis.openapi.from_url(f"{service}/openapi.json", config=config)


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_the_service_conforms_to_its_openapi_document(document: Any, mode: str) -> None:
    from schemathesis.core.failures import Failure, FailureGroup
    from schemathesis.generation import GenerationMode

    operations = [found.ok() for found in document.get_all_operations()]
    each = -(-CASES // (2 * len(operations)))
    failures: list[str] = []
    seen: list[object] = []
    for operation in operations:
        try:
            _sent(operation, GenerationMode(mode), each, seen)
        except (FailureGroup, Failure) as failure:
            said = [str(one) for one in getattr(failure, "exceptions", [failure])]
            failures.append("\n".join([operation.label, *said, str(seen[-1])]))
        except Unsatisfiable:
            continue  # there is nothing wrong that could be sent
    assert not failures, "\n\n".join(failures)
    assert len(seen) >= each * 20


def _sent(operation: Any, mode: Any, cases: int, seen: list[object]) -> None:
    """Send so many requests of one kind, and check what comes back."""
    from schemathesis.specs.openapi import checks

    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {TOKENS['*']}"
    # What fits the shape may still make no sense there: OpenAI says 400 to that.
    known: Any = checks
    excluded = [known.positive_data_acceptance] if "openai" in operation.tags else []

    @settings(
        max_examples=cases,
        deadline=None,
        derandomize="EVOCLAW_SCHEMA_CASES" not in os.environ,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(case=operation.as_strategy(mode))
    def send(case: Any) -> None:
        response = case.call(session=session, timeout=20)
        seen.append((response.status_code, response.content[:500], case.as_curl_command()))
        case.validate_response(response, excluded_checks=excluded)

    with session:
        send()
