from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.url_guard import DENIED_NETWORKS, UrlGuard, UrlTarget, read_url

# Nothing here connects: the cloud's own metadata address might answer on the machine of the tests.
INSIDE = (
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
)
INSIDE_V6 = (
    "::",
    "::1",
    "::7f00:1",
    "fc00::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "100::1",
    "2001::1",
    "2001:2::1",
    "2001:10::1",
    "2001:db8::1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "64:ff9b:1::1",
    "::ffff:0:127.0.0.1",
)
OUTSIDE = ("1.1.1.1", "8.8.8.8", "93.184.215.14", "172.32.0.1", "100.128.0.1", "223.255.255.1")
OUTSIDE_V6 = ("2606:4700:4700::1111", "2001:4860:4860::8888", "2a00:1450::1", "2400:cb00::1")


class Names:
    def __init__(self, *addresses: str) -> None:
        self.addresses, self.asked = addresses, list[str]()

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.addresses


async def refusal(url: str, guard: UrlGuard | None = None) -> ToolFailure:
    names = Names("1.1.1.1")
    with pytest.raises(ToolFailure) as raised:
        await (guard or UrlGuard(resolve=names)).target(url)
    assert not names.asked
    return raised.value


def hidden(address: str) -> Iterator[str]:
    """IPv6 forms that lead to an IPv4 address."""
    number = int(ipaddress.IPv4Address(address))
    high, low = number >> 16, number & 0xFFFF
    flipped = number ^ 0xFFFFFFFF
    yield f"::ffff:{address}"
    yield f"::{high:x}:{low:x}"
    yield f"64:ff9b::{address}"
    yield f"2002:{high:x}:{low:x}::1"
    yield f"2001:0:4136:e378:8000:63bf:{flipped >> 16:x}:{flipped & 0xFFFF:x}"


def spellings(address: str) -> Iterator[str]:
    """IPv4 as `inet_aton` and fonts can write it."""
    parts = [int(part) for part in address.split(".")]
    a, b, c, d = parts
    number = int(ipaddress.IPv4Address(address))
    yield from (str(number), hex(number), f"0{number:o}", hex(number).upper())
    yield from (f"{a}.{b}.{(c << 8) + d}", f"{a}.{(b << 16) + (c << 8) + d}")
    yield ".".join(f"0{part:o}" for part in parts)
    yield ".".join(hex(part) for part in parts)
    yield ".".join(f"{part:04d}" for part in parts)
    yield f"{hex(a)}.{b}.0{c:o}.{d}"
    yield address.replace("0", "%30").replace("1", "%31").replace("2", "%32")


def disguises(address: str) -> Iterator[str]:
    """Spellings that stand for the plain address, letter by letter."""
    circled = "⓪①②③④⑤⑥⑦⑧⑨"
    yield "".join(circled[int(letter)] if letter.isdigit() else letter for letter in address)
    yield "".join(chr(ord(letter) + 0xFEE0) if letter != "." else "．" for letter in address)
    yield address.replace(".", "。")
    yield address.replace(".", "｡")
    yield address + "."


@pytest.mark.parametrize("address", INSIDE)
async def test_fault_61_every_spelling_of_a_private_address_is_refused(address: str) -> None:
    forms = [address, *disguises(address), *(f"[{one}]" for one in hidden(address))]
    for host in forms:
        for url in (f"http://{host}/", f"https://{host}:8443/x", f"HTTP://{host}?a#b"):
            assert (await refusal(url)).kind is ErrorKind.PERMISSION_DENIED, url
    for host in spellings(address):
        assert (await refusal(f"http://{host}/")).kind in (
            ErrorKind.PERMISSION_DENIED,
            ErrorKind.INVALID_PARAMS,
        ), host


@pytest.mark.parametrize("address", INSIDE_V6)
async def test_fault_61_private_ipv6_addresses_are_refused(address: str) -> None:
    whole = ipaddress.IPv6Address(address)
    for host in (address, whole.exploded, whole.compressed.upper()):
        assert (await refusal(f"http://[{host}]/")).kind is ErrorKind.PERMISSION_DENIED, host


@pytest.mark.parametrize("address", [*INSIDE, *INSIDE_V6, "fe80::1%eth0"])
async def test_fault_61_a_host_name_resolving_to_a_private_address_is_refused(address: str) -> None:
    for addresses in ((address,), ("1.1.1.1", address), (address, "1.1.1.1")):
        names = Names(*addresses)
        with pytest.raises(ToolFailure) as raised:
            await UrlGuard(resolve=names).target("http://good.example/")
        assert raised.value.kind is ErrorKind.PERMISSION_DENIED
        assert names.asked == ["good.example"]


@given(st.sampled_from(DENIED_NETWORKS), st.integers(min_value=0))
def test_fault_61_no_address_of_a_denied_network_passes(
    denied: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, str], number: int
) -> None:
    network = denied[0]
    address = network[number % network.num_addresses]
    guard = UrlGuard()
    assert guard.objection(address)
    if isinstance(address, ipaddress.IPv4Address):
        for form in hidden(str(address)):
            assert guard.objection(ipaddress.ip_address(form)), form


@given(st.ip_addresses(v=4))
def test_fault_61_addresses_that_ipaddress_calls_private_never_pass(
    address: ipaddress.IPv4Address,
) -> None:
    if not address.is_global or address.is_multicast:
        assert UrlGuard().objection(address)


@pytest.mark.parametrize("address", OUTSIDE)
async def test_public_addresses_pass_also_through_nat64(address: str) -> None:
    assert await UrlGuard().target(f"http://{address}/") == UrlTarget(
        f"http://{address}/", (address,)
    )
    wrapped = str(ipaddress.IPv6Address(f"64:ff9b::{address}"))
    target = await UrlGuard(resolve=Names(address, wrapped, address)).target(
        "https://a.example/p?q=1"
    )
    assert target == UrlTarget("https://a.example/p?q=1", (address, wrapped))


@pytest.mark.parametrize("address", OUTSIDE_V6)
async def test_public_ipv6_addresses_pass(address: str) -> None:
    assert (await UrlGuard().target(f"http://[{address}]:81/")).addresses == (address,)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "//example.com/",
        "file:///etc/passwd",
        "ftp://example.com/",
        "gopher://example.com/",
        "data:text/html,hi",
        "javascript:alert(1)",
        "unix:///run/docker.sock",
        "http+unix://%2Frun%2Fdocker.sock/info",
        "https:/example.com",
        "http:///path",
        "http://",
        "http://user@example.com/",
        "http://user:pass@example.com/",
        "http://1.1.1.1@10.0.0.1/",
        "http://a.example\\@10.0.0.1/",
        "http://a.example:99999/",
        "http://a.example:0/",
        "http://a.example:8o/",
        "http://a b.example/",
        "http://a.example/\r\nHost: b",
        "http://a\x00.example/",
        "http://exam%70le.com/",
        "http://[::1",
        "http://[fe80::1%25eth0]/",
        "http://[v1.x]/",
        "http://[127.0.0.1]/",
        "http://a..example/",
        "http://.example/",
        "http://a.example../",
        "http://-a.example/",
        f"http://{'a' * 64}.example/",
        f"http://{'a.' * 127}example/",
        "http://example.com/" + "x" * 9_000,
        "http://1.2.3/",
        "http://1.2.3.4.5/",
        "http://256.1.1.1/",
        "http://a.0x10/",
        "http://0x/",
    ],
)
async def test_fault_61_an_ambiguous_url_is_refused(url: str) -> None:
    refused = await refusal(url)
    assert refused.kind is ErrorKind.INVALID_PARAMS
    assert "pass@" not in refused.message


@pytest.mark.parametrize(
    ("url", "read"),
    [
        (" https://Example.COM \n", "https://example.com/"),
        ("http://a.example#@10.0.0.1:99999/", "http://a.example/"),
        ("http://a.example?@10.0.0.1/#x", "http://a.example/?@10.0.0.1/"),
        ("http://example.com./a?b=c#d", "http://example.com/a?b=c"),
        ("http://straße.example/ä?q=ö", "http://xn--strae-oqa.example/%C3%A4?q=%C3%B6"),
        ("http://a_b.example:8080/@me", "http://a_b.example:8080/@me"),
        ("https://example.com:443/%41%2F", "https://example.com/A%2F"),
        ("http://[2606:4700::1]/", "http://[2606:4700::1]/"),
    ],
)
def test_url_normalization_is_idempotent(url: str, read: str) -> None:
    assert str(read_url(url)) == read
    assert str(read_url(read)) == read


@given(st.text(max_size=40), st.sampled_from(["http://", "https://a.example", "http://[", ""]))
def test_fault_61_the_url_parser_survives_arbitrary_text(text: str, start: str) -> None:
    try:
        read = read_url(start + text)
    except ToolFailure as refused:
        assert refused.kind is ErrorKind.INVALID_PARAMS
        return
    assert read.scheme in ("http", "https") and read.raw_host and not read.raw_user


async def test_only_allowed_private_networks_may_be_reached() -> None:
    guard = UrlGuard(("10.1.0.0/16", "::1"), resolve=Names("10.1.2.3"))

    assert (await guard.target("http://inner.example/")).addresses == ("10.1.2.3",)
    assert (await guard.target("http://[::1]/")).addresses == ("::1",)
    # Python spells it in another way from 3.13 on.
    (mapped,) = (await guard.target("http://[::ffff:10.1.0.1]/")).addresses
    assert ipaddress.ip_address(mapped) == ipaddress.ip_address("::ffff:10.1.0.1")
    for url in ("http://10.2.0.1/", "http://127.0.0.1/", "http://[::2]/"):
        assert (await refusal(url, guard)).kind is ErrorKind.PERMISSION_DENIED


async def test_every_address_of_a_name_is_asked_about_and_one_denied_address_denies_it() -> None:
    def only(address: object) -> bool:
        return str(address) == "192.168.1.20"

    guard = UrlGuard(resolve=Names("192.168.1.20"), may_address=only)
    assert (await guard.target("http://wiki.example/")).addresses == ("192.168.1.20",)
    mixed = UrlGuard(resolve=Names("192.168.1.20", "192.168.1.21"), may_address=only)
    with pytest.raises(ToolFailure) as refused:
        await mixed.target("http://wiki.example/")
    assert refused.value.kind is ErrorKind.PERMISSION_DENIED


def test_an_invalid_allowed_network_is_refused() -> None:
    for wrong in ("localhost", "10.0.0.1/8", ""):
        with pytest.raises(ConfigError):
            UrlGuard((wrong,))


async def test_an_unresolvable_host_name_fails_with_the_reason() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("no such host")

    for resolve in (Names(), unknown):
        with pytest.raises(ToolFailure, match="'nowhere.example' is unknown"):
            await UrlGuard(resolve=resolve).target("http://nowhere.example/")
    with pytest.raises(ToolFailure, match="an invalid address"):
        await UrlGuard(resolve=Names("rubbish")).target("http://odd.example/")


async def test_localhost_resolved_by_the_system_is_refused() -> None:
    with pytest.raises(ToolFailure) as raised:
        await UrlGuard().target("http://localhost/")

    assert raised.value.kind is ErrorKind.PERMISSION_DENIED
