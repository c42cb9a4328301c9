"""Web Push: subscriptions of browsers, VAPID, and messages that only the browser can read."""

from __future__ import annotations

from pathlib import Path

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from evoclaw.orchestrator.notifications.settings import NotifySettings, WebPushSettings
from evoclaw.orchestrator.people.access import AccessControl
from evoclaw.trust.web_push import (
    InvalidPushKey,
    VapidKey,
    decode_base64url,
    encode_base64url,
    encrypt,
)
from tests.support.notifications import NotifyingService, asking_model, notifying_service
from tests.support.push_browser import PushBrowser
from tests.support.service import Client

PUSH = NotifySettings(
    name="browsers",
    kind="webpush",
    webpush=WebPushSettings(contact="mailto:ann@example.org", allow=("127.0.0.0/8",)),
)


async def subscribed(up: NotifyingService, client: Client, name: str) -> PushBrowser:
    browser = PushBrowser(f"{up.services.url}/push/{name}")
    made = await client.post("/v1/push/subscriptions", browser.subscription)
    assert made.status == 201, made.body
    return browser


def test_a_message_is_encrypted_as_in_the_example_of_the_standard() -> None:
    """RFC 8291, section 5 and appendix A."""
    made = encrypt(
        b"When I grow up, I want to be a watermelon",
        "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
        "BTBZMqHH6r4Tts7J_aSIgg",
        salt=decode_base64url("DGv6ra1nlYgDCS1FRnbzlw"),
        sender=decode_base64url("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"),
    )
    assert encode_base64url(made) == (
        "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWA"
        "mS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxs"
        "j_Qulcy4a-fN"
    )


def test_keys_that_no_browser_makes_are_refused() -> None:
    for p256dh, auth in (("", ""), ("AAAA", "AAAA"), ("A" * 87, "A" * 22)):
        with pytest.raises(InvalidPushKey):
            encrypt(b"x", p256dh, auth)


def test_a_push_service_can_verify_who_sends() -> None:
    key = VapidKey(VapidKey.generate())
    header = key.authorization("https://push.test:444/send/x?y", "mailto:a@b.c", 1_000.0)
    token, shown = header.removeprefix("vapid t=").split(", k=")
    assert shown == key.public_text
    public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decode_base64url(shown))
    claims = jwt.decode(
        token, public, ["ES256"], audience="https://push.test:444", options={"verify_exp": False}
    )
    assert claims == {"aud": "https://push.test:444", "exp": 44_200, "sub": "mailto:a@b.c"}


async def test_a_browser_gets_the_message_with_links_that_answer(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model(), notifiers=[PUSH]) as up:
        ann = await up.client()
        key = (await ann.get("/v1/push/key")).json["key"]
        browser = await subscribed(up, ann, "one")
        run_id = await up.waiting_run(ann)
        (found,) = await up.services.wait_for("push")
        assert found.headers["content-encoding"] == "aes128gcm"
        assert found.headers["urgency"] == "high"
        assert found.headers["authorization"].endswith(f", k={key}")
        message = browser.read(found.data)
        assert message["title"] == "Approval needed"
        async with up.http.post(message["answers"]["approve"]) as page:
            assert page.status == 200
        await ann.until(f"/v1/runs/{run_id}", "state", "ended")
        gone = await ann.ask("DELETE", "/v1/push/subscriptions", {"endpoint": browser.endpoint})
        assert gone.status == 204
        again = await ann.ask("DELETE", "/v1/push/subscriptions", {"endpoint": browser.endpoint})
        assert again.status == 404


async def test_a_user_gets_only_their_own_and_may_answer_only_as_a_person(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model(2), notifiers=[PUSH]) as up:
        ann, bob = await up.client(user="ann"), await up.client(user="bob")
        reader = await up.client("approvals:read", user="bob")
        other = await up.client(tenant="other", user="eve")
        mine = await subscribed(up, reader, "bob")
        await up.waiting_run(ann)
        await up.waiting_run(bob)
        (found,) = await up.services.wait_for("push")
        message = mine.read(found.data)
        assert message["answers"] == {}
        # Another user, and another tenant, cannot end the subscription.
        body = {"endpoint": mine.endpoint}
        assert (await ann.ask("DELETE", "/v1/push/subscriptions", body)).status == 404
        assert (await other.ask("DELETE", "/v1/push/subscriptions", body)).status == 404
        assert (await other.get("/v1/push/key")).status == 404
        await up.notifications.scan()
        assert len(up.services.of("push")) == 1


async def test_a_browser_ends_with_the_token_that_added_it(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model(), notifiers=[PUSH]) as up:
        ann, lost = await up.client(), await up.client("human", "approvals:read")
        browser = await subscribed(up, lost, "lost")
        run_id = await up.waiting_run(ann)
        (found,) = await up.services.wait_for("push")
        approve = browser.read(found.data)["answers"]["approve"]
        token = lost.token.split("_")[1]
        assert await AccessControl(up.house.tokens).revoke("local", token)
        async with up.http.post(approve) as page:
            assert page.status == 404
        assert (await ann.get(f"/v1/runs/{run_id}")).json["state"] == "waiting"
        checked = await up.notifications.test("local", "browsers")
        assert checked is not None
        assert "no browser is subscribed" in checked.detail


async def test_a_browser_that_left_is_forgotten(tmp_path: Path) -> None:
    async with notifying_service(tmp_path, asking_model(), notifiers=[PUSH]) as up:
        ann = await up.client()
        await subscribed(up, ann, "gone")
        checked = await up.notifications.test("local", "browsers")
        assert checked is not None
        assert (checked.ok, checked.detail) == (False, "the browser is no longer subscribed")
        checked = await up.notifications.test("local", "browsers")
        assert checked is not None
        assert "no browser is subscribed" in checked.detail
        await subscribed(up, ann, "one")
        checked = await up.notifications.test("local", "browsers")
        assert checked is not None
        assert (checked.ok, checked.detail) == (True, "sent to 1 of 1 browsers")


async def test_a_push_service_must_not_be_in_the_operators_network(tmp_path: Path) -> None:
    """The URL comes from a browser: with it, a user could reach what only the service can."""
    closed = msgspec.structs.replace(PUSH, webpush=WebPushSettings(contact="mailto:a@b.c"))
    async with notifying_service(tmp_path, asking_model(), notifiers=[closed]) as up:
        ann = await up.client()
        await subscribed(up, ann, "one")
        checked = await up.notifications.test("local", "browsers")
        assert checked is not None
        assert not checked.ok
        for wrong in ("ftp://push.test", "https://user:pass@push.test/x", "https://"):
            browser = PushBrowser(wrong)
            made = await ann.post("/v1/push/subscriptions", browser.subscription)
            assert made.status == 422, made.body
        keys = {"p256dh": "AAAA", "auth": "AAAA"}
        body = {"endpoint": "https://push.test/x", "keys": keys}
        assert (await ann.post("/v1/push/subscriptions", body)).status == 422
    assert up.services.received == []
