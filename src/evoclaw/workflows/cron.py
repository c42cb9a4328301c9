"""Cron expressions, and the next time that one matches.

Five fields, minute, hour, day of month, month and day of week: `*`, numbers, names of months and
days, ranges, steps and lists. If both kinds of day are given, either will do.

When daylight saving time changes: an hour of `*` follows elapsed time. Any other hour follows the
wall clock, and each of its times occurs once a day: in a repeated hour at its first occurrence, in
a skipped hour later by as much as the clock was put forward.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from evoclaw.core.errors import EvoClawError

MAX_YEARS_AHEAD = 40
"""How far ahead to search: the calendar repeats within that time, except across a century."""

NAMED_SCHEDULES = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}  # fmt: skip
MONTHS = {
    "jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6, "jul": 7, "aug": 8, "sep": 9,
    "oct": 10, "nov": 11, "dec": 12,
}  # fmt: skip
DAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
SUNDAY = 7
"""The other number of Sunday, so that a range can end with it."""
_PART = re.compile(r"(\*|[a-z]{3}|\d{1,4})(?:-([a-z]{3}|\d{1,4}))?(?:/(\d{1,4}))?", re.ASCII)
_MAX_SHIFT_DAYS = 2
"""Days by which a time in a skipped hour may come later."""


class BadCron(EvoClawError):
    """The text is not a valid cron expression, or matches no time."""


class _Field(Struct, frozen=True):
    name: str
    first: int
    last: int
    names: Mapping[str, int] = {}


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, MONTHS),
    _Field("day of week", 0, SUNDAY, DAYS),
)


class Cron(Struct, frozen=True):
    """A parsed cron expression."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """Sunday is 0."""
    any_hour: bool
    """The hour is `*`, or steps of it."""
    any_day: bool
    """One of the two kinds of day is `*`, or steps of it: both must fit."""

    def on(self, day: date) -> bool:
        """Whether the expression matches a day."""
        if day.month not in self.months:
            return False
        by_date, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_date and by_week if self.any_day else by_date or by_week

    def after(self, moment: float, zone: ZoneInfo) -> float:
        """The first match after a moment, in Unix seconds; `BadCron` if there is none."""
        found = (
            self._next_elapsed(moment, zone)
            if self.any_hour
            else self._next_wall_clock(moment, zone)
        )
        if found is None:
            raise BadCron(f"no time matches within {MAX_YEARS_AHEAD} years")
        return found

    def _next_elapsed(self, moment: float, zone: ZoneInfo) -> float | None:
        at = int(moment // 60) * 60 + 60
        last = at + MAX_YEARS_AHEAD * 366 * 86_400
        while at < last:
            local = datetime.fromtimestamp(at, zone)
            if not self.on(local.date()):
                at = max(at + 60, _ceiling(_midnight(local.date() + timedelta(days=1), zone)))
            elif local.hour in self.hours and local.minute in self.minutes and not local.second:
                return float(at)
            else:
                # In a zone with an offset of seconds, minutes do not start at UTC minutes.
                at += 60 - local.second
        return None

    def _next_wall_clock(self, moment: float, zone: ZoneInfo) -> float | None:
        day = datetime.fromtimestamp(moment, zone).date() - timedelta(days=_MAX_SHIFT_DAYS)
        best: float | None = None
        more = MAX_YEARS_AHEAD * 366
        while more > 0:
            for at in self._times(day, zone) if self.on(day) else ():
                if at > moment and (best is None or at < best):
                    # Only a time from a skipped hour can still come before it.
                    best, more = at, min(more, _MAX_SHIFT_DAYS + 1)
            day, more = day + timedelta(days=1), more - 1
        return best

    def _times(self, day: date, zone: ZoneInfo) -> Iterator[float]:
        for hour in self.hours:
            for minute in self.minutes:
                local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
                yield local.timestamp()


def parse_cron(text: str) -> Cron:
    """Parse a cron expression; `BadCron` says what is wrong with it."""
    words = NAMED_SCHEDULES.get(text.strip().lower(), text).lower().split()
    if len(words) != len(_FIELDS):
        names = ", ".join(field.name for field in _FIELDS)
        problem = f"{text[:80]!r} has {len(words)} fields instead of five: {names}"
        raise BadCron(f"{problem}; or write one of {', '.join(NAMED_SCHEDULES)}")
    minutes, hours, days, months, weekdays = map(_values, words, _FIELDS)
    return Cron(
        minutes,
        hours,
        days,
        months,
        frozenset(number % 7 for number in weekdays),
        any_hour=words[1].startswith("*"),
        any_day=words[2].startswith("*") or words[4].startswith("*"),
    )


def zone_of(name: str) -> ZoneInfo:
    """The time zone of this name; `BadCron` if there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadCron(f"unknown time zone {name[:80]!r}; write one such as Europe/Berlin") from None


def _values(word: str, field: _Field) -> frozenset[int]:
    return frozenset(number for part in word.split(",") for number in _part(part, field))


def _part(part: str, field: _Field) -> range:
    found = _PART.fullmatch(part)
    if found is None or (found[1] == "*" and found[2]):
        raise BadCron(f"{field.name}: cannot read {part[:20]!r}")
    top = field.last - (field.last == SUNDAY)
    first, last = field.first, top
    if found[1] != "*":
        first = _number(found[1], field)
        last = _number(found[2], field) if found[2] else top if found[3] else first
        last = SUNDAY if found[2] == "sun" else last
    if found[3] is not None and int(found[3]) == 0:
        raise BadCron(f"{field.name}: a step in {part[:20]!r} must be 1 or more")
    if last < first:
        raise BadCron(f"{field.name}: the range {part[:20]!r} ends before it starts")
    return range(first, last + 1, int(found[3] or 1))


def _number(text: str, field: _Field) -> int:
    if text in field.names:
        return field.names[text]
    if not text.isdigit() or not field.first <= int(text) <= field.last:
        known = f" or {'/'.join(field.names)}" if field.names else ""
        allowed = f"{field.first} to {field.last}{known}"
        raise BadCron(f"{field.name}: {text!r} is not one of {allowed}")
    return int(text)


def _midnight(day: date, zone: ZoneInfo) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()


def _ceiling(moment: float) -> int:
    return -int(-moment // 60) * 60
