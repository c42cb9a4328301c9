"""The composition root: the one place where the parts of a process are put together.

Each part is imported where it is built, and each file here when it is first asked for, so that a
process loads only what it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.wiring.audit import audit_place
    from evoclaw.wiring.budget import open_ledger
    from evoclaw.wiring.channels import add_user, channels, remove_user
    from evoclaw.wiring.conversations import open_conversations
    from evoclaw.wiring.edge import open_edge
    from evoclaw.wiring.fleet import fleet_ports, open_fleet
    from evoclaw.wiring.http import open_access
    from evoclaw.wiring.judging import judges
    from evoclaw.wiring.local import local_ports
    from evoclaw.wiring.mcp import mcp_over_http, mcp_over_stdio
    from evoclaw.wiring.models import model_at_hand
    from evoclaw.wiring.oversight import open_approvals, open_stops, stop_file, stop_files
    from evoclaw.wiring.pairing import invite, join, public_key, revoke
    from evoclaw.wiring.receipts import open_receipts
    from evoclaw.wiring.servers import mcp_pins
    from evoclaw.wiring.settings import loop_settings, settings_text
    from evoclaw.wiring.skills import skill_catalogue, skill_places
    from evoclaw.wiring.ssh import ssh_ports
    from evoclaw.wiring.store import open_devices, open_figures, open_moving
    from evoclaw.wiring.toolbox import open_toolbox
    from evoclaw.wiring.up import bring_up

__all__ = [
    "add_user",
    "audit_place",
    "bring_up",
    "channels",
    "fleet_ports",
    "invite",
    "join",
    "judges",
    "local_ports",
    "loop_settings",
    "mcp_over_http",
    "mcp_over_stdio",
    "mcp_pins",
    "model_at_hand",
    "open_access",
    "open_approvals",
    "open_conversations",
    "open_devices",
    "open_edge",
    "open_figures",
    "open_fleet",
    "open_ledger",
    "open_moving",
    "open_receipts",
    "open_stops",
    "open_toolbox",
    "public_key",
    "remove_user",
    "revoke",
    "settings_text",
    "skill_catalogue",
    "skill_places",
    "ssh_ports",
    "stop_file",
    "stop_files",
]
_WHERE = {
    "add_user": "channels",
    "audit_place": "audit",
    "bring_up": "up",
    "channels": "channels",
    "fleet_ports": "fleet",
    "invite": "pairing",
    "join": "pairing",
    "judges": "judging",
    "local_ports": "local",
    "loop_settings": "settings",
    "mcp_over_http": "mcp",
    "mcp_over_stdio": "mcp",
    "mcp_pins": "servers",
    "model_at_hand": "models",
    "open_access": "http",
    "open_approvals": "oversight",
    "open_conversations": "conversations",
    "open_devices": "store",
    "open_edge": "edge",
    "open_figures": "store",
    "open_fleet": "fleet",
    "open_ledger": "budget",
    "open_moving": "store",
    "open_receipts": "receipts",
    "open_stops": "oversight",
    "open_toolbox": "toolbox",
    "public_key": "pairing",
    "remove_user": "channels",
    "revoke": "pairing",
    "settings_text": "settings",
    "skill_catalogue": "skills",
    "skill_places": "skills",
    "ssh_ports": "ssh",
    "stop_file": "oversight",
    "stop_files": "oversight",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    return found
