"""A record of the audit on one line."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from evoclaw.cli.clean import clean, one_line
from evoclaw.core.messages import JSON


def audit_line(fields: Mapping[str, JSON]) -> str:
    """When, who, what, how it went, what was said to it."""

    def said(name: str) -> str:
        value: JSON = fields.get(name)
        return "" if value is None else str(value)

    verdict = " ".join(filter(None, (said("verdict"), said("code"))))
    given = msgspec.json.encode(fields["parameters"]).decode() if "parameters" in fields else ""
    more = given or said("reason") or said("model")
    what = said("tool") or said("kind")
    line = f"{said('timestamp')} {said('agent_id'):12} {what:14} {said('result'):10} {verdict:16} "
    return one_line(line + more, 200) if more else clean(line).rstrip()
