"""Formats an audit record as one line."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from evoclaw.cli.clean import clean, one_line
from evoclaw.core.messages import JSON


def audit_line(fields: Mapping[str, JSON]) -> str:
    """Time, agent, tool or kind, result, verdict, and parameters or reason."""

    def text(name: str) -> str:
        value: JSON = fields.get(name)
        return "" if value is None else str(value)

    verdict = " ".join(filter(None, (text("verdict"), text("code"))))
    parameters = ""
    if "parameters" in fields:
        parameters = msgspec.json.encode(fields["parameters"]).decode()
    details = parameters or text("reason") or text("model")
    what = text("tool") or text("kind")
    line = f"{text('timestamp')} {text('agent_id'):12} {what:14} {text('result'):10} {verdict:16} "
    return one_line(line + details, 200) if details else clean(line).rstrip()
