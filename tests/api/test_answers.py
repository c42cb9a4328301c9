"""The links of notifications that approve or deny a call, and attacks on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from evoclaw.orchestrator.notifications.answer_tokens import AnswerTokens, OneTapAnswer
from evoclaw.orchestrator.notifications.answers import ANSWER_PATH
from tests.support.notifications import (
    SECRET,
    NotifyingService,
    asking_model,
    notifying_service,
)
from tests.support.service import Client


async def links(up: NotifyingService, number: int = 1) -> tuple[str, str]:
    """The links of a message that approve and deny."""
    message = (await up.services.wait_for("ntfy", number))[number - 1].body
    approve, deny, _ = message["actions"]
    return approve["url"], deny["url"]


async def fetch(up: NotifyingService, method: str, url: str, **headers: str) -> tuple[int, str]:
    """The status and text of a page, without any token."""
    async with up.http.request(method, url, headers=headers) as page:
        return page.status, await page.text()


async def state(client: Client, run_id: str) -> str:
    return str((await client.get(f"/v1/runs/{run_id}")).json["state"])


def changed(up: NotifyingService, url: str, **fields: object) -> str:
    """The link with other content, signed with the right key."""
    token = url.rpartition("/")[2]
    answer = up.tokens.read(token)
    assert answer is not None
    return f"{up.url}{ANSWER_PATH}{up.tokens.sign(replace(answer, **fields))}"


async def test_a_link_shows_the_call_and_only_a_post_answers_it(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model()) as up:
        ann = await up.client()
        run_id = await up.waiting_run(ann)
        approve, _ = await links(up)
        for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"):
            status, text = await fetch(up, method, approve)
            if method == "GET":
                assert status == 200
                assert "Approve this call?" in text
                assert "job 0" in text
        assert await state(ann, run_id) == "waiting"
        status, text = await fetch(up, "POST", approve, origin=up.url)
        assert (status, "The call was approved." in text) == (200, True)
        found = await ann.until(f"/v1/runs/{run_id}", "state", "ended")
        assert found["text"] == "done"
        assert len(up.house.ran) == 1
        # The token cannot be used again, nor the other one.
        assert (await fetch(up, "POST", approve))[0] == 409
        assert (await fetch(up, "GET", approve))[0] == 409
        # The audit log has no link that still works.
        assert {one.path for one in up.house.refusals} == {f"{ANSWER_PATH}…"}


async def test_a_link_denies_a_call(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model(), users=("ann",)) as up:
        ann = await up.client()
        run_id = await up.waiting_run(ann)
        (waiting,) = (await ann.get("/v1/approvals")).json["items"]
        approve, deny = await links(up)
        assert (await fetch(up, "POST", deny))[0] == 200
        await ann.until(f"/v1/runs/{run_id}", "state", "ended")
        assert up.house.ran == []
        status, text = await fetch(up, "POST", approve)
        assert (status, "it was already denied" in text) == (409, True)
        found = (await ann.get(f"/v1/approvals/{waiting['id']}")).json
        assert (found["decision"], found["answered_by"]) == ("deny", "ann")
        assert found["answer_reason"] == "denied by ann with the link of the notifier 'phone'"


async def test_an_expired_link_answers_nothing(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model(), answer_s=120) as up:
        ann = await up.client()
        run_id = await up.waiting_run(ann)
        approve, _ = await links(up)
        up.clock.offset = 119
        assert (await fetch(up, "GET", approve))[0] == 200
        up.clock.offset = 121
        for method in ("GET", "POST"):
            status, text = await fetch(up, method, approve)
            assert (status, "has expired" in text) == (410, True)
            assert "job 0" not in text
        assert await state(ann, run_id) == "waiting"


async def test_a_tampered_link_answers_nothing(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model()) as up:
        ann = await up.client()
        run_id = await up.waiting_run(ann)
        approve, deny = await links(up)
        base, _, token = approve.rpartition("/")
        body, _, signature = token.partition(".")
        other = deny.rpartition("/")[2].partition(".")[0]
        forged = AnswerTokens(b"x" * 32).sign(
            OneTapAnswer("local", "id", "0" * 32, "once", "phone", "", 1 << 40)
        )
        swapped = "A" if token[0] != "A" else "B"
        attempts = (
            f"{swapped}{token[1:]}", f"{body}.{'A' * 43}", f"{body}.", body, f".{signature}",
            f"{other}.{signature}", f"{token}A", f"{token}.{signature}", forged, "x" * 900,
        )  # fmt: skip
        for attempt in attempts:
            for method in ("GET", "POST"):
                status, text = await fetch(up, method, f"{base}/{attempt}")
                assert status in (404, 422), (attempt, text)
        assert await state(ann, run_id) == "waiting"


@pytest.mark.parametrize(
    "fields",
    [
        {"digest": "0" * 32},
        {"approval_id": "0123456789"},
        {"tenant": "other"},
        {"notifier": "mail"},
    ],
)
async def test_a_link_for_another_call_tenant_or_notifier_is_invalid(
    tmp_path: Path, fields: dict[str, str]
) -> None:
    async with notifying_service(tmp_path, asking_model()) as up:
        ann = await up.client()
        run_id = await up.waiting_run(ann)
        approve, _ = await links(up)
        status, _ = await fetch(up, "POST", changed(up, approve, **fields))
        assert status == 404
        assert await state(ann, run_id) == "waiting"


async def test_a_link_answers_its_own_call_only(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model(2)) as up:
        ann = await up.client()
        first, second = await up.waiting_run(ann), await up.waiting_run(ann)
        approve, _ = await links(up, 1)
        assert (await fetch(up, "POST", approve))[0] == 200
        await ann.until(f"/v1/runs/{first}", "state", "ended")
        assert await state(ann, second) == "waiting"
        # The digest of one call with the id of the other.
        other, _ = await links(up, 2)
        mine = up.tokens.read(approve.rpartition("/")[2])
        assert mine is not None
        assert (await fetch(up, "POST", changed(up, other, digest=mine.digest)))[0] == 404
        assert await state(ann, second) == "waiting"


async def test_a_link_of_a_call_that_was_answered_meanwhile_is_refused(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model()) as up:
        ann = await up.client()
        run_id = await up.waiting_run(ann)
        approve, deny = await links(up)
        answered = await ann.post(f"/v1/runs/{run_id}/deny", {"reason": "no"})
        assert answered.status == 200
        for url in (approve, deny):
            status, text = await fetch(up, "POST", url)
            assert (status, "it was already denied" in text) == (409, True)
        await ann.until(f"/v1/runs/{run_id}", "state", "ended")
        assert up.house.ran == []


async def test_an_approval_of_another_tenant_is_neither_reported_nor_answered(
    tmp_path: Path,
) -> None:
    async with notifying_service(tmp_path, asking_model(2)) as up:
        ann, eve = await up.client(), await up.client(tenant="other", user="eve")
        theirs = await up.waiting_run(eve)
        await up.waiting_run(ann)
        (waiting,) = (await eve.get("/v1/approvals")).json["items"]
        approve, _ = await links(up)
        assert len(up.services.of("ntfy")) == 1
        fields = {"tenant": "other", "approval_id": waiting["id"], "digest": waiting["sha256"][:32]}
        # Even a link with the right signature: the notifier belongs to another tenant.
        assert (await fetch(up, "POST", changed(up, approve, **fields)))[0] == 404
        assert await state(eve, theirs) == "waiting"


async def test_a_notifier_without_answers_sends_no_links_and_old_ones_stop_working(
    tmp_path: Path,
) -> None:
    async with notifying_service(tmp_path, asking_model(), answers=False) as up:
        ann = await up.client()
        run_id = await up.waiting_run(ann)
        message = (await up.services.wait_for("ntfy"))[0].body
        assert [one["label"] for one in message["actions"]] == ["Open"]
        (waiting,) = (await ann.get("/v1/approvals")).json["items"]
        answer = OneTapAnswer(
            "local", waiting["id"], waiting["sha256"][:32], "once", "phone", "", 1 << 40
        )
        url = f"{up.url}{ANSWER_PATH}{up.tokens.sign(answer)}"
        assert (await fetch(up, "POST", url))[0] == 404
        assert await state(ann, run_id) == "waiting"


async def test_another_web_site_cannot_post_a_link(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model()) as up:
        ann = await up.client()
        run_id = await up.waiting_run(ann)
        approve, _ = await links(up)
        assert (await fetch(up, "POST", approve, origin="https://evil.example"))[0] == 403
        assert await state(ann, run_id) == "waiting"


async def test_the_page_shows_no_secret_and_runs_no_script(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model()) as up:
        await up.waiting_run(await up.client())
        approve, _ = await links(up)
        async with up.http.get(approve) as page:
            text, headers = await page.text(), page.headers
        assert "<script" not in text
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        message = up.services.of("ntfy")[0].body
        assert SECRET not in str(message)
