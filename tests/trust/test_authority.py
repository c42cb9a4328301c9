"""The certificate of a broker, by an authority of the orchestrator's own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.transport.address import Address, TlsSettings
from evoclaw.transport.broker_certificates import fetch_authority, file_fingerprint
from evoclaw.trust.authority import BrokerCertificate, issue_certificate

HOSTS = ["127.0.0.1", "house.local"]


@asynccontextmanager
async def tls_server(files: BrokerCertificate) -> AsyncGenerator[Address]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    async with server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])


async def connect(address: Address, ca: Path, name: str) -> None:
    context = TlsSettings(str(ca)).context()
    _, writer = await asyncio.open_connection(
        address.host, address.port, ssl=context, server_hostname=name
    )
    writer.close()


async def test_an_edge_finds_the_authority_by_its_fingerprint_and_trusts_the_broker(
    tmp_path: Path,
) -> None:
    files = issue_certificate(tmp_path / "tls", HOSTS)
    async with tls_server(files) as address:
        pem = await asyncio.to_thread(fetch_authority, address, file_fingerprint(files.ca).upper())
        assert pem == files.ca.read_text()
        for name in HOSTS:
            await connect(address, files.ca, name)
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(address, files.ca, "another.local")


async def test_a_new_certificate_needs_no_new_pairing(tmp_path: Path) -> None:
    before = issue_certificate(tmp_path, HOSTS)
    trusted = before.ca.read_bytes()
    after = issue_certificate(tmp_path, ["127.0.0.1", "moved.local"])
    assert after.ca.read_bytes() == trusted
    async with tls_server(after) as address:
        await connect(address, after.ca, "moved.local")


async def test_the_authority_of_another_machine_is_refused(tmp_path: Path) -> None:
    ours, others = (issue_certificate(tmp_path / name, HOSTS) for name in ("ours", "others"))
    async with tls_server(others) as address:
        with pytest.raises(ConfigError, match="it may be another machine"):
            await asyncio.to_thread(fetch_authority, address, file_fingerprint(ours.ca))


async def test_a_broker_that_cannot_be_reached_is_explained(tmp_path: Path) -> None:
    async with tls_server(issue_certificate(tmp_path, HOSTS)) as address:
        pass
    with pytest.raises(ConfigError, match="cannot read the certificate of the broker at 127"):
        await asyncio.to_thread(fetch_authority, address, "00" * 32)


def test_a_damaged_authority_is_not_replaced(tmp_path: Path) -> None:
    files = issue_certificate(tmp_path, HOSTS)
    files.ca.write_text("damaged")
    with pytest.raises(ConfigError, match="restore ca.pem and ca.key"):
        issue_certificate(tmp_path, HOSTS)
    with pytest.raises(ConfigError, match="cannot load the CA file"):
        file_fingerprint(files.ca)


def test_the_keys_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    files = issue_certificate(tmp_path / "tls", HOSTS)
    for path in (files.key, tmp_path / "tls" / "ca.key"):
        assert path.stat().st_mode & 0o777 == 0o600
