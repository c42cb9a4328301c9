from __future__ import annotations

import pytest

from evoclaw.orchestrator.channels.inbound import MessageRefused
from evoclaw.orchestrator.channels.settings import SignatureScheme, WebhookSettings
from evoclaw.orchestrator.channels.signatures import WebhookSignatures

SECRET, NOW = b"0123456789abcdef", 1_700_000_000.0
SCHEMES: tuple[SignatureScheme, ...] = ("evoclaw", "github", "slack")


def made(scheme: SignatureScheme, secret: bytes = SECRET, **more: str) -> WebhookSignatures:
    return WebhookSignatures(WebhookSettings(scheme=scheme, secret_env="X", **more), secret)  # pyright: ignore[reportArgumentType]


def refusal(
    signatures: WebhookSignatures, headers: dict[str, str], body: bytes, now: float = NOW
) -> str:
    with pytest.raises(MessageRefused) as caught:
        signatures.check(headers, body, now)
    return caught.value.reason


def test_githubs_documented_signature_example_is_accepted() -> None:
    """From GitHub's documentation on validating deliveries."""
    signatures = made("github", b"It's a Secret to Everybody")
    digest = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    signatures.check({"x-hub-signature-256": f"sha256={digest}"}, b"Hello, World!", NOW)


def test_slacks_documented_signature_example_is_accepted() -> None:
    """From Slack's documentation on verifying requests."""
    signatures = made("slack", b"8f742231b10e8888abcd99yyyzzz85a5")
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow"
        b"&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner"
        b"&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com"
        b"%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    digest = "a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    headers = {"x-slack-signature": f"v0={digest}", "x-slack-request-timestamp": "1531420618"}
    signatures.check(headers, body, 1531420618.0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_only_a_correctly_signed_webhook_body_is_accepted(scheme: SignatureScheme) -> None:
    signatures, body = made(scheme), b'{"message": "hi"}'
    headers = signatures.headers(body, NOW)
    signatures.check(headers, body, NOW)

    assert refusal(signatures, headers, body + b" ") == "unsigned"
    assert refusal(made(scheme, b"another secret!!"), headers, body) == "unsigned"
    assert refusal(signatures, {}, body) == "unsigned"
    for name in headers:
        assert refusal(signatures, {**headers, name: ""}, body) == "unsigned"
        assert refusal(signatures, {**headers, name: headers[name] + "0"}, body) == "unsigned"
        assert refusal(signatures, {**headers, name: "\xff"}, body) == "unsigned"


@pytest.mark.parametrize("scheme", ["evoclaw", "slack"])
def test_a_signature_outside_the_time_window_is_stale(scheme: SignatureScheme) -> None:
    signatures, body = made(scheme), b"{}"
    headers = signatures.headers(body, NOW)

    for seconds in (-300, 300):
        signatures.check(headers, body, NOW + seconds)
    for seconds in (-302, 302):
        assert refusal(signatures, headers, body, NOW + seconds) == "stale"


@pytest.mark.parametrize("scheme", ["evoclaw", "slack"])
def test_the_signature_covers_the_timestamp(scheme: SignatureScheme) -> None:
    signatures, body = made(scheme), b"{}"
    headers = signatures.headers(body, NOW)
    later = signatures.headers(body, NOW + 1000)
    name = next(key for key in headers if "timestamp" in key)

    assert refusal(signatures, {**headers, name: later[name]}, body, NOW + 1000) == "unsigned"


def test_signature_header_names_are_configurable() -> None:
    signatures = made("evoclaw", signature_header="X-Sig", timestamp_header="X-When")
    headers = signatures.headers(b"{}", NOW)
    assert set(headers) == {"x-sig", "x-when"}
    signatures.check(headers, b"{}", NOW)


def test_each_scheme_states_whether_it_signs_a_timestamp() -> None:
    assert [made(scheme).has_timestamp for scheme in SCHEMES] == [True, False, True]
