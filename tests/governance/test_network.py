"""Which hosts may be reached, and how the rule is asked."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import msgspec
import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import ALLOW, Deny
from evoclaw.core.tools import Call, Tool
from evoclaw.governance.network import NetworkPolicy, NetworkSettings


def call(arguments: dict[str, Any], *permissions: str) -> Call:
    tool = Tool("webfetch", "", {}, frozenset(permissions or ("network",)))
    return Call("c1", tool, arguments, "r.1.1.1", 10.0)


async def code(domains: NetworkPolicy, arguments: dict[str, Any], *permissions: str) -> str:
    verdict = await domains.judge(call(arguments, *permissions))
    assert verdict == ALLOW or isinstance(verdict, Deny)
    return verdict.code


async def test_by_default_tools_may_reach_every_host_and_commands_none() -> None:
    domains = NetworkPolicy()
    assert domains.allows("example.org")
    assert not domains.allows_for_commands("example.org")
    assert not domains.commands_have_network
    assert await code(domains, {"url": "https://example.org/"}) == ""


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("example.org", True),
        ("EXAMPLE.org", True),
        ("example.org.", True),
        ("www.example.org", False),
        ("notexample.org", False),
        ("a.wild.test", True),
        ("a.b.wild.test", True),
        ("wild.test", False),
        ("evilwild.test", False),
        ("example.org.evil.test", False),
        ("bad.wild.test", False),
        ("192.0.2.1", True),
        ("192.0.2.10", False),
        ("", False),
    ],
)
def test_a_host_pattern_is_exact_or_covers_all_subdomains(host: str, allowed: bool) -> None:
    said = NetworkSettings(
        allow=("example.org", "*.wild.test", "192.0.2.1"), deny=("bad.wild.test",)
    )
    assert NetworkPolicy(said).allows(host) is allowed


def test_a_denied_host_stays_denied_whatever_allows_it() -> None:
    said = NetworkSettings(deny=("*.bad.test",), commands=("*", "x.bad.test"))
    domains = NetworkPolicy(said)
    assert not domains.allows("x.bad.test")
    assert not domains.allows_for_commands("x.bad.test")
    assert domains.allows_for_commands("good.test")


def test_commands_cannot_reach_more_hosts_than_tools() -> None:
    domains = NetworkPolicy(NetworkSettings(allow=("a.test",), commands=("a.test", "b.test")))
    assert domains.allows_for_commands("a.test")
    assert not domains.allows_for_commands("b.test")


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": "https://bad.test/"},
        {"url": "HTTP://BAD.TEST:8080?x"},
        {"url": " https://bad.test./x"},
        {"where": "http://bad.test"},
        {"many": ["https://good.test", {"deep": "https://bad.test/x"}]},
    ],
)
async def test_a_call_that_names_a_denied_host_is_denied(arguments: dict[str, Any]) -> None:
    domains = NetworkPolicy(NetworkSettings(deny=("bad.test",)))
    assert await code(domains, arguments) == "network_domain"


@pytest.mark.parametrize(
    "url",
    [
        "https://good.test@bad.test/",
        "https://good.test\\@bad.test/",
        "https://good.test\t.bad.test/",
        "https:/bad.test",
        "https://",
        "https://%62ad.test/",
        "https://[bad.test/",
    ],
)
async def test_an_ambiguous_url_is_denied(url: str) -> None:
    assert await code(NetworkPolicy(), {"url": url}) == "network_address"


async def test_an_url_nested_too_deep_is_denied() -> None:
    deep: Any = "https://bad.test"
    for _ in range(20):
        deep = [deep]
    assert await code(NetworkPolicy(), {"url": deep}) == "network_address"


async def test_an_internationalized_host_is_judged_by_its_ascii_form() -> None:
    domains = NetworkPolicy(NetworkSettings(deny=("xn--bcher-kva.test",)))
    assert await code(domains, {"url": "https://bücher.test/"}) == "network_domain"


async def test_tools_without_network_access_are_not_judged() -> None:
    domains = NetworkPolicy(NetworkSettings(allow=()))
    assert await code(domains, {"text": "https://bad.test/"}, "files") == ""
    assert await code(domains, {"query": "plain words"}) == ""


@pytest.mark.parametrize(
    "pattern",
    ["", "https://x.test", "x.test/path", "x.test:80", "*x.test", "a.*.test", "**", "bücher.test"],
)
def test_an_invalid_host_pattern_is_refused_at_load(pattern: str) -> None:
    with pytest.raises(ConfigError, match="not a host"):
        NetworkPolicy(NetworkSettings(deny=(pattern,)))


def test_an_invalid_port_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a port"):
        NetworkPolicy(NetworkSettings(ports=(0,)))


def test_private_addresses_are_allowed_one_by_one_and_never_for_commands() -> None:
    said = NetworkSettings(private=("192.168.1.20", "10.1.0.0/16"), commands=("192.168.1.20",))
    domains = NetworkPolicy(said)
    assert domains.allows_address(IPv4Address("192.168.1.20"))
    assert domains.allows_address(IPv4Address("10.1.255.1"))
    assert not domains.allows_address(IPv4Address("192.168.1.21"))
    domains.use(NetworkSettings())
    assert not domains.allows_address(IPv4Address("192.168.1.20"))


@pytest.mark.parametrize("network", ["wiki.internal", "10.1.2.3/16", ""])
def test_an_invalid_private_network_is_refused(network: str) -> None:
    with pytest.raises(ConfigError, match="write an address such as"):
        NetworkPolicy(NetworkSettings(private=(network,)))


def test_network_settings_are_read_from_toml() -> None:
    said = msgspec.toml.decode(
        b'deny = ["*.internal.test"]\ncommands = ["files.example.org"]\nports = [443]',
        type=NetworkSettings,
    )
    domains = NetworkPolicy(said)
    assert domains.allows_for_commands("files.example.org")
    assert not domains.allows("db.internal.test")
    assert domains.allows_port(443) and not domains.allows_port(80)
    with pytest.raises(msgspec.ValidationError):
        msgspec.toml.decode(b"allowed = []", type=NetworkSettings)


def test_other_lists_apply_to_what_uses_the_policy_already() -> None:
    policy = NetworkPolicy(NetworkSettings(deny=("bad.example",)))
    allows = policy.allows
    policy.use(NetworkSettings(deny=("worse.example",)))
    assert (allows("bad.example"), allows("worse.example")) == (True, False)
    with pytest.raises(ConfigError):
        policy.use(NetworkSettings(deny=(), ports=(0,)))
    assert not allows("worse.example"), "lists with an error change nothing"
