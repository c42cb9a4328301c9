"""Webhooks over real sockets: signed letters in, signed answers out."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import pytest

from evoclaw.api.app import create_app
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.routes.channels import channel_routes
from evoclaw.api.server import serving
from evoclaw.api.settings import ServerSettings
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.channels.settings import ChannelSettings, WebhookSettings
from evoclaw.orchestrator.channels.signatures import WebhookSignatures
from evoclaw.orchestrator.channels.webhooks import WebhookChannel
from evoclaw.orchestrator.people.access import AccessControl
from evoclaw.providers.scripted import says
from evoclaw.store.governance.tokens import TokenStore
from tests.support.channels import ChannelHarness, open_channel_harness
from tests.support.service import Answer
from tests.support.waiting import until
from tests.support.webhook_receiver import WebhookReceiver, open_webhook_receiver

SECRET = b"0123456789abcdef0123456789abcdef"
HELLO = {"message": "how long?", "sender": "U1", "conversation": "c1", "message_id": "m1"}


@dataclass
class Hooked:
    """A service with one webhook."""

    kitchen: ChannelHarness
    hook: WebhookChannel
    signatures: WebhookSignatures
    there: WebhookReceiver
    http: aiohttp.ClientSession
    url: str

    async def post(
        self, body: JSON, headers: dict[str, str] | None = None, *, name: str = "hook"
    ) -> Answer:
        """Post something, signed now if the headers do not say otherwise."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        signed = self.signatures.headers(data, time.time()) if headers is None else headers
        async with self.http.post(
            f"{self.url}/v1/channels/{name}", data=data, headers=signed
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def admin(self, method: str, path: str, *scopes: str, tenant: str = "local") -> Answer:
        """Ask as somebody with these scopes."""
        access = AccessControl(TokenStore(self.kitchen.database))
        _, token = await access.create("test", tenant, "ann", scopes)
        shown = {"authorization": f"Bearer {token}"}
        async with self.http.request(method, self.url + path, headers=shown) as response:
            return Answer(response.status, response.headers, await response.read())


@asynccontextmanager
async def hooked(
    folder: Path, *answers: str, patience: float = 3600.0, **settings: JSON
) -> AsyncGenerator[Hooked]:
    async with (
        open_webhook_receiver() as there,
        open_channel_harness(folder, *(says(one) for one in answers)) as made,
    ):
        chosen = msgspec.convert(
            {"secret_env": "X", "callback_url": there.url, **settings}, WebhookSettings
        )
        channel = ChannelSettings(
            name="hook", kind="webhook", agent="cook", senders={"U1": "ann"}, webhook=chosen
        )
        hook = WebhookChannel(channel, SECRET)
        desk = made.dispatcher([hook], {"hook": patience})
        server = ServerSettings(port=0, stop_within_s=1)
        parts = ApiDependencies(
            access=AccessControl(TokenStore(made.database)),
            settings=server,
            extra_routes=channel_routes(desk, [hook]),
        )
        async with (
            desk.serving(),
            aiohttp.ClientSession() as http,
            serving(create_app(parts), server) as url,
        ):
            yield Hooked(made, hook, WebhookSignatures(chosen, SECRET), there, http, url)


async def test_a_signed_message_is_answered_with_a_signed_callback(
    tmp_path: Path,
) -> None:
    async with hooked(tmp_path, "twelve minutes") as it:
        received = await it.post(HELLO)
        (answer,) = await it.there.wait_for_posts(1)

        assert received.status == 202
        assert received.json["state"] == "accepted"
        assert answer["run_id"] == received.json["run_id"]
        assert (answer["state"], answer["text"]) == ("answer", "twelve minutes")
        assert (answer["message_id"], answer["conversation"]) == ("m1", "c1")
        assert (answer["channel"], answer["sender"]) == ("hook", "U1")
        it.signatures.check(it.there.headers[0], it.there.bodies[0], time.time())
        (run,) = await it.kitchen.runs.list("local")
        assert run.owner == "ann"


async def test_a_message_posted_twice_starts_one_run(tmp_path: Path) -> None:
    async with hooked(tmp_path, "one", "two") as it:
        first = await it.post(HELLO)
        await it.there.wait_for_posts(1)
        again = await it.post(HELLO)

        assert (again.status, again.json["run_id"]) == (202, first.json["run_id"])
        assert again.json["fresh"] is False
        assert len(it.kitchen.model.requests) == 1
        assert len(it.there.bodies) == 1


async def test_a_replayed_message_without_an_id_starts_one_run(tmp_path: Path) -> None:
    async with hooked(tmp_path, "one", "two", message_id="/none") as it:
        data = msgspec.json.encode(HELLO)
        headers = it.signatures.headers(data, time.time())
        for _ in range(2):
            assert (await it.post(data, headers)).status == 202
        await it.there.wait_for_posts(1)

        assert len(await it.kitchen.runs.list("local")) == 1


@pytest.mark.parametrize("wrong", ["nothing", "secret", "body", "old", "channel"])
async def test_a_message_with_a_missing_wrong_or_old_signature_is_refused(
    tmp_path: Path, wrong: str
) -> None:
    async with hooked(tmp_path) as it:
        data = msgspec.json.encode(HELLO)
        other = WebhookSignatures(WebhookSettings(secret_env="X"), b"somebody else's.")
        headers = {
            "nothing": {},
            "secret": other.headers(data, time.time()),
            "body": it.signatures.headers(data + b" ", time.time()),
            "old": it.signatures.headers(data, time.time() - 302),
            "channel": it.signatures.headers(data, time.time()),
        }[wrong]
        answer = await it.post(data, headers, name="other" if wrong == "channel" else "hook")

        assert (answer.status, answer.code) == (401, "stale" if wrong == "old" else "unsigned")
        assert not await it.kitchen.runs.list("local")
        if wrong != "channel":
            assert it.hook.counts[f"refused: {answer.code}"] == 1


async def test_an_unknown_sender_is_refused_despite_a_valid_signature(tmp_path: Path) -> None:
    async with hooked(tmp_path) as it:
        answer = await it.post({**HELLO, "sender": "U2"})

        assert (answer.status, answer.code) == (403, "unknown_sender")
        assert it.hook.counts["refused: unknown_sender"] == 1


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{broken", 422, "unreadable"),
        (b"[" * 10_000, 422, "unreadable"),
        (b'{"message": "' + b"x" * 300_000 + b'"}', 413, "too_large"),
        (msgspec.json.encode({**HELLO, "message": "x" * 70_000}), 413, "too_large"),
    ],
)
async def test_an_unreadable_or_oversized_message_is_refused_with_a_reason(
    tmp_path: Path, body: bytes, status: int, code: str
) -> None:
    async with hooked(tmp_path) as it:
        answer = await it.post(body)
        assert (answer.status, answer.code) == (status, code)


async def test_a_message_id_reused_for_other_content_is_a_conflict(tmp_path: Path) -> None:
    async with hooked(tmp_path, "one") as it:
        await it.post(HELLO)
        answer = await it.post({**HELLO, "message": "something else"})
        assert (answer.status, answer.code) == (409, "conflict")


async def test_custom_json_is_read_with_json_pointers(tmp_path: Path) -> None:
    async with hooked(
        tmp_path, "twelve", text="/data/0/body", sender="/data/0/by/id", message_id="/data/0/n"
    ) as it:
        odd = {"data": [{"body": "how long?", "by": {"id": "U1"}, "n": 17}]}
        assert (await it.post(odd)).status == 202
        (answer,) = await it.there.wait_for_posts(1)

        assert (answer["message_id"], answer["text"]) == ("17", "twelve")


async def test_an_event_without_text_is_ignored(tmp_path: Path) -> None:
    async with hooked(tmp_path, scheme="github") as it:
        answer = await it.post({"zen": "Keep it logically awesome.", "hook_id": 1})

        assert (answer.status, answer.json["state"]) == (200, "ignored")
        assert it.hook.replayable


async def test_the_slack_url_verification_challenge_is_answered(tmp_path: Path) -> None:
    async with hooked(tmp_path, "twelve", scheme="slack") as it:
        answer = await it.post({"type": "url_verification", "challenge": "3eZbrw1aB"})
        assert (answer.status, answer.body) == (200, b"3eZbrw1aB")

        said = {"event_id": "E1", "event": {"text": "how long?", "user": "U1", "channel": "C1"}}
        assert (await it.post(said)).status == 202
        assert (await it.there.wait_for_posts(1))[0]["conversation"] == "C1"


async def test_a_failed_callback_is_retried_until_it_is_accepted(tmp_path: Path) -> None:
    async with hooked(tmp_path, "twelve") as it:
        it.there.statuses = [503]
        await it.post(HELLO)
        first, second = await it.there.wait_for_posts(2)

    assert first == second


async def test_a_dead_delivery_can_be_listed_and_revived_by_an_admin(
    tmp_path: Path,
) -> None:
    async with hooked(tmp_path, "twelve") as it:
        it.there.statuses = [410]
        await it.post(HELLO)
        await until(lambda: it.kitchen.letters.deliveries("local"))
        place = "/v1/deliveries/given-up"

        (found,) = (await it.admin("GET", place, "admin")).json["items"]
        assert found["problem"] == "the callback URL answered with status 410"
        assert found["answer"]["text"] == "twelve"
        assert (await it.admin("GET", place, "admin", tenant="other")).json["items"] == []
        assert (await it.admin("GET", place, "runs:read")).status == 403

        revive = f"/v1/deliveries/{found['id']}/revive"
        assert (await it.admin("POST", revive, "admin", tenant="other")).status == 404
        assert (await it.admin("POST", revive, "admin")).status == 202
        await it.there.wait_for_posts(2)


async def test_without_a_callback_the_answer_is_available_from_its_run(tmp_path: Path) -> None:
    async with hooked(tmp_path, "twelve", callback_url="") as it:
        received = await it.post(HELLO)
        await until(lambda: it.kitchen.letters.deliveries("local"))
        run = await it.kitchen.runs.get("local", received.json["run_id"])

        assert run is not None
        assert run.text == "twelve"


async def test_a_run_that_cannot_start_is_reported_at_once_and_by_callback(
    tmp_path: Path,
) -> None:
    async with hooked(tmp_path) as it:
        it.kitchen.runs.draining = True
        received = await it.post(HELLO)
        (answer,) = await it.there.wait_for_posts(1)

        assert (received.status, received.json["reason"]) == (202, "draining")
        assert (answer["state"], answer["reason"]) == ("failed", "draining")


async def test_an_admin_sees_the_traffic_and_the_problems_of_a_channel(tmp_path: Path) -> None:
    started = time.time()
    async with hooked(tmp_path, "twelve") as it:

        async def channel() -> JSON:
            return (await it.admin("GET", "/v1/channels", "admin")).json["items"][0]

        idle = await channel()
        assert (idle["name"], idle["kind"], idle["state"]) == ("hook", "webhook", "listening")
        assert idle["changed_at"] >= started
        assert (idle["senders"], idle["paired"], idle["sends_answers"]) == (["U1"], {}, True)
        assert (idle["last_received_at"], idle["last_sent_at"], idle["fix"]) == (None, None, "")

        await it.post(HELLO)
        await it.there.wait_for_posts(1)

        async def has_sent() -> bool:
            return (await channel())["last_sent_at"] is not None

        await until(has_sent)
        busy = await channel()
        assert started <= busy["last_received_at"] <= busy["last_sent_at"]

        assert (await it.post(HELLO, {})).status == 401
        refused = await channel()
        assert (refused["refused"], refused["problem"]) == (1, "")
        assert "signature" in refused["last_problem"]
        assert refused["last_problem_at"] >= busy["last_sent_at"]

        assert (await it.admin("GET", "/v1/channels", "admin", tenant="x")).json["items"] == []
        assert (await it.admin("GET", "/v1/channels", "runs:read")).status == 403


async def test_an_answer_that_is_given_up_is_counted_until_it_is_delivered(tmp_path: Path) -> None:
    async with hooked(tmp_path, "twelve") as it:
        it.there.statuses = [410]
        await it.post(HELLO)
        await until(lambda: it.kitchen.letters.deliveries("local"))
        (found,) = (await it.admin("GET", "/v1/channels", "admin")).json["items"]
        assert (found["given_up"], found["retrying"]) == (1, 0)
        assert found["last_problem"] == "the callback URL answered with status 410"
        assert "retry" in found["fix"]

        (dead,) = (await it.admin("GET", "/v1/deliveries/given-up", "admin")).json["items"]
        await it.admin("POST", f"/v1/deliveries/{dead['id']}/revive", "admin")
        await it.there.wait_for_posts(2)

        async def is_delivered() -> bool:
            (now,) = (await it.admin("GET", "/v1/channels", "admin")).json["items"]
            return (now["given_up"], now["fix"]) == (0, "") and now["last_sent_at"] is not None

        await until(is_delivered)


async def test_a_webhook_without_a_callback_has_no_undelivered_answers(tmp_path: Path) -> None:
    async with hooked(tmp_path, "twelve", callback_url="") as it:
        await it.post(HELLO)
        await until(lambda: it.kitchen.letters.deliveries("local"))
        (found,) = (await it.admin("GET", "/v1/channels", "admin")).json["items"]
        assert (found["sends_answers"], found["given_up"], found["last_problem"]) == (False, 0, "")
