from __future__ import annotations

from collections.abc import Sequence

import pytest

from evoclaw.orchestrator.channels.callbacks import Callback
from evoclaw.orchestrator.channels.inbound import Undelivered
from tests.support.webhook_receiver import open_webhook_receiver


async def failure(callback: Callback) -> Undelivered:
    with pytest.raises(Undelivered) as caught:
        await callback.post(b"{}", {})
    return caught.value


async def test_a_callback_to_loopback_is_posted_over_plain_http() -> None:
    async with open_webhook_receiver() as there:
        await Callback(there.url).post(b'{"a": 1}', {"x-signed": "yes"})

        assert await there.wait_for_posts(1) == [{"a": 1}]
        assert there.headers[0]["x-signed"] == "yes"
        assert there.headers[0]["content-type"] == "application/json"


@pytest.mark.parametrize(
    "address", ["10.1.2.3", "192.168.1.1", "169.254.169.254", "100.64.0.1", "fd00::1"]
)
async def test_a_callback_host_that_resolves_to_a_private_address_is_not_contacted(
    address: str,
) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return [address]

    problem = await failure(Callback("https://inside.example.org/", resolve=resolve))
    assert problem.final
    assert "was not contacted" in str(problem)


async def test_allowing_one_private_network_does_not_allow_another() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["192.168.1.1"]

    url = "https://inside.example.org/"
    problem = await failure(Callback(url, ("10.0.0.0/8",), resolve=resolve))
    assert problem.final


async def test_a_callback_to_a_remote_host_requires_https() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["93.184.216.34"]

    problem = await failure(Callback("http://outside.example.org/", resolve=resolve))
    assert problem.final
    assert "must use https" in str(problem)


async def test_a_callback_redirect_is_not_followed() -> None:
    async with open_webhook_receiver() as there:
        there.statuses, there.more = [307], {"Location": there.url}
        problem = await failure(Callback(there.url))

        assert not problem.final
        assert len(there.bodies) == 1


@pytest.mark.parametrize(
    ("status", "final"), [(500, False), (429, False), (404, False), (401, False), (410, True)]
)
async def test_only_http_410_makes_a_callback_failure_permanent(status: int, final: bool) -> None:
    async with open_webhook_receiver() as there:
        there.statuses, there.more = [status], {"Retry-After": "7"}
        problem = await failure(Callback(there.url))

    assert (problem.final, problem.retry_after) == (final, 7.0)


async def test_an_unreachable_callback_address_is_a_temporary_failure() -> None:
    async with open_webhook_receiver() as there:
        url = there.url
    problem = await failure(Callback(url))
    assert not problem.final
    assert "cannot be reached" in str(problem)


async def test_an_unresolvable_callback_host_is_a_temporary_failure() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise OSError

    assert not (await failure(Callback("https://x.example.org/", resolve=resolve))).final
