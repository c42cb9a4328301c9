"""Where the broker of `evoclaw up` listens, and the address in invitations."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.executors.machine import default_address, network_addresses
from evoclaw.transport.address import parse_url
from evoclaw.wiring.broker_endpoint import BrokerEndpoint, broker_endpoint


def endpoint(home: Path, lan: str = "", host: str = "127.0.0.1") -> BrokerEndpoint:
    return broker_endpoint(home, host=host, port=0, lan=lan)


def test_by_default_only_this_machine_is_served_without_tls(tmp_path: Path) -> None:
    found = endpoint(tmp_path)
    assert found.url(found.invite_host, 1883) == "mqtt://127.0.0.1:1883"
    assert not (tmp_path / "tls").exists()


def test_an_address_is_the_only_one_that_is_listened_on(tmp_path: Path) -> None:
    found = endpoint(tmp_path, "192.0.2.7")
    assert (found.host, found.local_host, found.invite_host) == ("192.0.2.7",) * 3
    assert found.url(found.invite_host, 8883) == "mqtts://192.0.2.7:8883"
    six = endpoint(tmp_path, "2001:db8::7")
    assert parse_url(six.url(six.invite_host, 8883)).host == "2001:db8::7"


def test_a_name_is_put_into_invitations(tmp_path: Path) -> None:
    found = endpoint(tmp_path, "house.local")
    assert (found.host, found.local_host) == ("0.0.0.0", "127.0.0.1")
    assert found.url(found.invite_host, 8883) == "mqtts://house.local:8883"


@pytest.mark.parametrize("lan", ["lan", "0.0.0.0"])
def test_all_networks_are_served_under_the_default_address(tmp_path: Path, lan: str) -> None:
    found = endpoint(tmp_path, lan)
    assert (found.host, found.local_host) == ("0.0.0.0", "127.0.0.1")
    assert found.invite_host == default_address()
    assert found.invite_host in ("", *network_addresses())


@pytest.mark.parametrize(
    ("lan", "said"), [("127.0.0.1", "is a loopback address"), ("a b", "neither an address nor")]
)
def test_an_address_that_no_other_machine_reaches_is_refused(
    tmp_path: Path, lan: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        endpoint(tmp_path, lan)
