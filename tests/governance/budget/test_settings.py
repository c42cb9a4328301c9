from __future__ import annotations

import msgspec
import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.core.ledgers import Limit
from evoclaw.core.toml import parse_toml
from evoclaw.governance.budget.settings import (
    BudgetSettings,
    check_budget,
    limits_of,
    parse_duration,
)

TEXT = """
turns = 10
minutes = 2.5
dollars = 0.50
bytes = 1_000_000
warn_at = 0.5
unpriced = "allow"

[tenant]
dollars = 5
per = "1d"

[actions.relay]
tools = ["gpio", "nodes"]
arguments = { action = "toggle" }
most = 3
per = "1h"

[allowed]
write = ["src/**"]
"""


def read(text: str) -> BudgetSettings:
    found = msgspec.convert(parse_toml(text, "test"), BudgetSettings)
    check_budget(found)
    return found


def test_a_budget_is_read_from_toml_in_integer_units() -> None:
    found = read(TEXT)
    limits = found.run_limits()
    assert limits["turns"] == Limit(10) and limits["calls"] == Limit(200)
    assert limits["dollars"] == Limit(500_000) and limits["seconds"] == Limit(150_000)
    assert "tokens" not in limits
    assert found.action_limits() == {"action.relay": Limit(3, 3_600.0)}
    assert limits_of(found.tenant) == {"dollars": Limit(5_000_000, 86_400.0)}
    assert limits_of(found.user) == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("turns = -1", "turns"),
        ("turn = 1", "turn"),
        ("warn_at = 0", "warn_at"),
        ('unpriced = "yes"', "unpriced"),
        ("dollars = nan", "dollars"),
    ],
)
def test_an_amount_of_the_wrong_type_is_refused(text: str, problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        read(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[actions."a b"]\ntools=["x"]\nmost=1', "letters"),
        ("[actions.a]\ntools=[]\nmost=1", "nothing is limited"),
        ('[actions.a]\ntools=["x"]\nmost=1\nper="1 week"', "budget.actions.a.*10m"),
        ('[tenant]\nper="soon"', "budget.tenant"),
        ("warn_at=0.9\nask_at=0.8", "ask_at"),
    ],
)
def test_invalid_settings_are_refused_with_advice(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("1.5m", 90), ("1h", 3_600), (" 7d ", 604_800)]
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
