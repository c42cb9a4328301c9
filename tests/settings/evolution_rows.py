"""`[agents.evolution]`: what each key changes in the agents of the service."""

from __future__ import annotations

from typing import Any

from tests.settings.rows import Built, Row, Rows, table

SHOWN = "tests/evolution"
AGENT = '[[agents]]\nid = "one"\ncapabilities = ["*"]\n'
BASE = f'{AGENT}[agents.evolution]\nproposers = ["numbers"]\n'
VALUES = {
    "proposers": '["numbers", "descriptions"]', "model": '"ollama/other"',
    "max_runs_per_day": "70", "max_cost_per_day": "2.5", "repeats": "9", "error_rate": "0.01",
    "min_cases": "3", "min_coverage": "0.5", "allowed_regressions": '["slow"]',
    "approver_keys": f'["{"A" * 43}"]', "shadow_runs": "2", "canary_share": "0.4",
    "canary_runs": "4", "watch_runs": "9", "max_failure_increase": "0.2",
    "max_denied_increase": "0.3", "max_cost_increase": "0.6", "max_bad_ratings": "0.7",
    "tenants": '["local", "acme"]',
}  # fmt: skip
"""Another value of each key."""


def _row(key: str) -> Row:
    async def seen(here: Built) -> Any:
        return getattr((await here.service()).default_agent.evolution, key)

    return Row(AGENT + table("agents.evolution", VALUES), seen, BASE, SHOWN)


EVOLUTION_ROWS: Rows = {f"agents.evolution.{key}": _row(key) for key in VALUES}
