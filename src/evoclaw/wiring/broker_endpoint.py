"""Decides where the broker of `evoclaw up` listens, and under which addresses it is reached."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from socket import gethostname

from msgspec import Struct

from evoclaw.core.errors import ConfigError

LAN = "lan"
"""Instead of an address: all networks of this machine."""
ALL_INTERFACES, LOOPBACK = "0.0.0.0", "127.0.0.1"


class BrokerEndpoint(Struct, frozen=True):
    """Where a broker listens, and how it is reached."""

    host: str
    """The address that it listens on."""
    port: int
    """0 chooses a free port."""
    local_host: str
    """For processes on this machine."""
    invite_host: str
    """For edges on other machines; empty if none is known."""
    tls: tuple[Path, Path, Path] | None = None
    """The certificate, its key and the CA file."""

    def url(self, host: str, port: int) -> str:
        """The address as a URL; empty without a host."""
        scheme = "mqtt" if self.tls is None else "mqtts"
        written = f"[{host}]" if ":" in host else host
        return f"{scheme}://{written}:{port}" if host else ""


def broker_endpoint(
    home: Path,
    *,
    host: str,
    port: int,
    lan: str = "",
    tls: tuple[Path, Path, Path] | None = None,
) -> BrokerEndpoint:
    """The endpoint for the options of `evoclaw up` and the settings.

    Args:
        home: The data folder, which has the certificate authority.
        host: The address to listen on; not used with `lan`.
        port: The port; 0 chooses a free one.
        lan: Serve other machines, with TLS: an address, a name, or `lan`; empty: do not.
        tls: A certificate of the user's own; without one, `lan` uses the own authority.
    """
    if not lan:
        everywhere = host in (ALL_INTERFACES, "::")
        local = LOOPBACK if everywhere else host
        return BrokerEndpoint(host, port, local, _default_address() if everywhere else host, tls)
    address = _address(lan)
    listening = address or ALL_INTERFACES
    everywhere = listening in (ALL_INTERFACES, "::")
    local = LOOPBACK if everywhere else listening
    if address and not everywhere:
        invited = address
    else:
        invited = _default_address() if address or lan == LAN else lan
    return BrokerEndpoint(listening, port, local, invited, tls or _own_tls(home, local, invited))


def _default_address() -> str:
    from evoclaw.executors.machine import default_address

    return default_address()


def _address(lan: str) -> str:
    """The address, if it is one and not a name."""
    try:
        found = ip_address(lan)
    except ValueError:
        if not lan.replace(".", "").replace("-", "").isalnum():
            raise ConfigError(
                f"{lan!r} is neither an address nor a name of this machine: use `lan`, or an "
                "address such as 192.0.2.7"
            ) from None
        return ""
    if found.is_loopback:
        raise ConfigError(f"{lan} is a loopback address, which no other machine reaches; use `lan`")
    return str(found)


def _own_tls(home: Path, local: str, invited: str) -> tuple[Path, Path, Path]:
    """A certificate for all addresses and names of this machine, by its own authority."""
    from evoclaw.executors.machine import network_addresses
    from evoclaw.trust.authority import issue_certificate

    name = gethostname().partition(".")[0]
    hosts = [invited or local, local, LOOPBACK, "localhost", *network_addresses()]
    if name.replace("-", "").isalnum() and name.isascii():
        hosts += [name, f"{name}.local"]
    made = issue_certificate(home / "tls", list(dict.fromkeys(hosts)))
    return made.cert, made.key, made.ca
