"""The composition root: the one place where the parts of a process are put together.

Each part is imported where it is built, and each file here when it is first asked for, so that a
process loads only what it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.wiring.audit import audit_place
    from evoclaw.wiring.budget import open_ledger
    from evoclaw.wiring.conversations import open_conversations
    from evoclaw.wiring.edge import open_edge
    from evoclaw.wiring.fleet import fleet_ports, open_fleet
    from evoclaw.wiring.judging import judges
    from evoclaw.wiring.local import local_ports
    from evoclaw.wiring.mcp import mcp_over_http, mcp_over_stdio
    from evoclaw.wiring.models import model_at_hand
    from evoclaw.wiring.oversight import open_approvals, stop_file
    from evoclaw.wiring.pairing import devices, invite, join, revoke
    from evoclaw.wiring.receipts import open_receipts
    from evoclaw.wiring.servers import mcp_pins
    from evoclaw.wiring.settings import wants_evidence
    from evoclaw.wiring.skills import skill_catalogue, skill_places
    from evoclaw.wiring.ssh import ssh_ports
    from evoclaw.wiring.toolbox import open_toolbox
    from evoclaw.wiring.up import bring_up

__all__ = [
    "audit_place",
    "bring_up",
    "devices",
    "fleet_ports",
    "invite",
    "join",
    "judges",
    "local_ports",
    "mcp_over_http",
    "mcp_over_stdio",
    "mcp_pins",
    "model_at_hand",
    "open_approvals",
    "open_conversations",
    "open_edge",
    "open_fleet",
    "open_ledger",
    "open_receipts",
    "open_toolbox",
    "revoke",
    "skill_catalogue",
    "skill_places",
    "ssh_ports",
    "stop_file",
    "wants_evidence",
]
_WHERE = {
    "audit_place": "audit",
    "bring_up": "up",
    "devices": "pairing",
    "fleet_ports": "fleet",
    "invite": "pairing",
    "join": "pairing",
    "judges": "judging",
    "local_ports": "local",
    "mcp_over_http": "mcp",
    "mcp_over_stdio": "mcp",
    "mcp_pins": "servers",
    "model_at_hand": "models",
    "open_approvals": "oversight",
    "open_conversations": "conversations",
    "open_edge": "edge",
    "open_fleet": "fleet",
    "open_ledger": "budget",
    "open_receipts": "receipts",
    "open_toolbox": "toolbox",
    "revoke": "pairing",
    "skill_catalogue": "skills",
    "skill_places": "skills",
    "ssh_ports": "ssh",
    "stop_file": "oversight",
    "wants_evidence": "settings",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    return found
