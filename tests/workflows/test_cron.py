"""Cron expressions, against going through every minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.workflows.cron import BadCron, Cron, parse_cron, zone_of
from tests.support.properties import examples

BERLIN = ZoneInfo("Europe/Berlin")


def after(cron: str, moment: str, zone: str = "UTC") -> str:
    """The next time, on the clock of the zone."""
    start = datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo(zone)).timestamp()
    found = parse_cron(cron).after(start, zone_of(zone))
    return datetime.fromtimestamp(found, ZoneInfo(zone)).isoformat()


@pytest.mark.parametrize(
    ("cron", "moment", "found"),
    [
        ("* * * * *", "2026-01-01T00:00:30", "2026-01-01T00:01:00+00:00"),
        ("0 7 * * 1-5", "2026-01-02T07:00", "2026-01-05T07:00:00+00:00"),
        ("*/15 9-17 * * *", "2026-01-01T17:45", "2026-01-02T09:00:00+00:00"),
        ("0 0 29 feb *", "2026-01-01T00:00", "2028-02-29T00:00:00+00:00"),
        ("30 8 1,15 * mon", "2026-01-01T09:00", "2026-01-05T08:30:00+00:00"),
        ("0 12 * * 7", "2026-01-01T00:00", "2026-01-04T12:00:00+00:00"),
        ("0 12 * * fri-sun", "2026-01-03T13:00", "2026-01-04T12:00:00+00:00"),
        ("5/20 * * * *", "2026-01-01T00:46", "2026-01-01T01:05:00+00:00"),
        ("@daily", "2026-12-31T23:59", "2027-01-01T00:00:00+00:00"),
        ("0 0 13 * */5", "2026-01-01T00:00", "2026-02-13T00:00:00+00:00"),
    ],
)
def test_the_next_time_of_a_cron_expression_is_found(cron: str, moment: str, found: str) -> None:
    assert after(cron, moment) == found


@pytest.mark.parametrize(
    ("cron", "moment", "found"),
    [
        # 02:00 to 03:00 is left out on 2026-03-29.
        ("30 2 * * *", "2026-03-29T00:00", "2026-03-29T03:30:00+02:00"),
        ("30 2 * * *", "2026-03-29T03:30", "2026-03-30T02:30:00+02:00"),
        ("*/30 * * * *", "2026-03-29T01:30", "2026-03-29T03:00:00+02:00"),
        # 02:00 to 03:00 is there twice on 2026-10-25.
        ("30 2 * * *", "2026-10-25T00:00", "2026-10-25T02:30:00+02:00"),
        ("30 2 * * *", "2026-10-25T02:30", "2026-10-26T02:30:00+01:00"),
        ("30 * * * *", "2026-10-25T02:30", "2026-10-25T02:30:00+01:00"),
    ],
)
def test_daylight_saving_changes_neither_skip_nor_repeat_a_time(
    cron: str, moment: str, found: str
) -> None:
    assert after(cron, moment, "Europe/Berlin") == found


@pytest.mark.parametrize(
    ("cron", "problem"),
    [
        ("* * * *", "has 4 fields"),
        ("60 * * * *", "minute: '60'"),
        ("* 5-3 * * *", "ends before it starts"),
        ("*/0 * * * *", "1 or more"),
        ("* * * foo *", "month: 'foo'"),
        ("* * 0 * *", "day of month: '0'"),
        ("1- * * * *", "cannot read"),
        ("@never", "five"),
    ],
)
def test_an_invalid_cron_expression_is_refused_with_a_reason(cron: str, problem: str) -> None:
    with pytest.raises(BadCron, match=problem):
        parse_cron(cron)


def test_a_cron_expression_that_never_matches_is_refused() -> None:
    with pytest.raises(BadCron, match="no time matches"):
        parse_cron("0 0 30 2 *").after(0, zone_of("UTC"))


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(BadCron, match="time zone 'Mars/Olympus'"):
        zone_of("Mars/Olympus")


def field(first: int, last: int) -> st.SearchStrategy[str]:
    number = st.integers(first, last)
    ranged = st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}")
    stepped = st.tuples(st.just("*") | ranged, st.integers(1, 20)).map(lambda p: f"{p[0]}/{p[1]}")
    one = number.map(str) | ranged | stepped
    return st.just("*") | st.lists(one, min_size=1, max_size=3).map(",".join)


crons = st.tuples(field(0, 59), field(0, 23), field(1, 31), st.just("*"), field(0, 7)).map(" ".join)
changes = [
    ("Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 24, 12, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 0, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 0, tzinfo=UTC)),
    ("UTC", datetime(2026, 2, 27, 0, tzinfo=UTC)),
]


def every_minute(cron: Cron, start: float, zone: ZoneInfo, minutes: int) -> float | None:
    """The first time within so many minutes, by looking at each of them, as the rules say."""

    def fits(wall: datetime) -> bool:
        return cron.on(wall.date()) and wall.hour in cron.hours and wall.minute in cron.minutes

    if cron.any_hour:
        first = (int(start) // 60 + 1) * 60
        times = (first + 60 * number for number in range(minutes))
        return next((at for at in times if fits(datetime.fromtimestamp(at, zone))), None)
    wall = datetime.fromtimestamp(start, zone).replace(tzinfo=None, second=0) - timedelta(days=1)
    walls = (wall + timedelta(minutes=number) for number in range(minutes + 2 * 1440))
    found = [one.replace(tzinfo=zone).timestamp() for one in walls if fits(one)]
    return min((at for at in found if start < at <= start + minutes * 60), default=None)


@settings(max_examples=examples(40), deadline=None)
@given(crons, st.sampled_from(changes), st.integers(0, 24 * 60))
def test_the_next_time_equals_a_brute_force_search_by_minute(
    text: str, change: tuple[str, datetime], later: int
) -> None:
    zone = ZoneInfo(change[0])
    start = (change[1] + timedelta(minutes=later)).timestamp()
    cron = parse_cron(text)
    wanted = every_minute(cron, start, zone, 3 * 1440)

    try:
        found = cron.after(start, zone)
    except BadCron:
        found = None
    if wanted is not None:
        assert found == wanted
    else:
        assert found is None or found > start + 3 * 1440 * 60 - 60
