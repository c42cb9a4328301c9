from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.transport.address import Address, TlsSettings, parse_url
from evoclaw.transport.mqtt import MqttLink
from tests.support.certificates import make_certificates

TLS = TlsSettings(ca_file="/ca.pem")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://host", Address("host")),
        ("mqtt://host:1884/", Address("host", 1884)),
        ("mqtt://me@host", Address("host", username="me")),
        ("mqtt://a%40b@10.0.0.1:1", Address("10.0.0.1", 1, username="a@b")),
        ("mqtt://[::1]:1883", Address("::1")),
        ("MQTTS://Host", Address("host", 8883, TlsSettings())),
        ("mqtts://me@host:443", Address("host", 443, TlsSettings(), "me")),
    ],
)
def test_a_broker_url_is_parsed_into_an_address(url: str, address: Address) -> None:
    assert parse_url(url) == address


def test_password_and_tls_settings_are_passed_separately_from_the_url() -> None:
    address = parse_url("mqtts://me@host", password="secret", tls=TLS)

    assert address == Address("host", 8883, TLS, "me", "secret")
    assert repr(address) == "<Address mqtts://me@host:8883>"


@pytest.mark.parametrize(
    "url",
    [
        *("", "host", "host:1883", "http://host", "mqtt://", "mqtt://:1883", "mqtt://host:0"),
        *("mqtt://host:99999", "mqtt://host:x", "mqtt://host/topic", "mqtt://host?q=1"),
        *("mqtt://[::1", "mqtt://a..b", "mqtt://" + "a" * 300),
    ],
)
def test_an_invalid_broker_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="form mqtt://user@host:1883"):
        parse_url(url)


def test_a_password_in_a_broker_url_is_refused_and_not_echoed() -> None:
    with pytest.raises(ConfigError, match="may not contain the password") as refused:
        parse_url("mqtt://me:secret@host")
    assert "secret" not in str(refused.value)


def test_tls_settings_or_a_password_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match="starts with mqtt:"):
        parse_url("mqtt://host", tls=TLS)
    with pytest.raises(ConfigError, match="needs a user"):
        parse_url("mqtt://host", password="secret")


def test_unusable_tls_files_are_reported_at_once(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    (tmp_path / "empty").write_text("")
    ca, cert, key = str(made.ca), str(made.client_cert), str(made.client_key)

    TlsSettings(ca, cert, key).context()
    for settings in (
        TlsSettings(str(tmp_path / "missing")),
        TlsSettings(str(tmp_path / "empty")),
        TlsSettings(ca, cert, str(made.server_key)),
        TlsSettings(ca, cert, None),
        TlsSettings(ca, None, key),
        TlsSettings(ca, str(tmp_path / "missing"), key),
    ):
        with pytest.raises(ConfigError):
            MqttLink(Address("127.0.0.1", 8883, settings))


@pytest.mark.parametrize("seconds", [0, -1, 65536])
def test_a_keep_alive_outside_the_mqtt_range_is_refused(seconds: int) -> None:
    with pytest.raises(ConfigError, match="between 1 and 65535"):
        MqttLink(Address("127.0.0.1"), keep_alive=seconds)
