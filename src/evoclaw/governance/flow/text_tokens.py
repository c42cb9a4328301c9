"""Splits text into tokens that can be compared: words, numbers, dates, times and durations."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_PUNCTUATION = "\"'`“”‘’«»()[]{}<>.,;:!?*_…|\\"
_SPLIT = re.compile(r"[\"“”«»()\[\]{}<>;|—–]+|,(?=\D)|(?<=\D),")
_SEPARATORS = re.compile(r"[\"“”«»()\[\]{}<>;|—–,]")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sep(?:t(?:ember)?)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_DAY = r"\b(\d{1,2})(?:st|nd|rd|th)?\b"
_YEAR = r"((?:19|20)\d\d)\b"
_ISO = re.compile(rf"\b{_YEAR}-(\d\d)-(\d\d)(?!\d)")
_MONTH_FIRST = re.compile(rf"\b{_MONTH}\s+{_DAY}(?!:)(?:,?\s+{_YEAR})?")
_DAY_FIRST = re.compile(rf"{_DAY}\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?")
_YEAR_ALONE = re.compile(rf"\b{_YEAR}(?![-\d])")
_CLOCK = re.compile(
    r"\b(\d{1,2})[:.](\d\d)(?::\d\d)?\s*([ap])\.?m\b|\b(\d{1,2}):(\d\d)(?::\d\d)?\b"
)
_HOUR = re.compile(r"\b(\d{1,2})\s*([ap])\.?m\b")
_DURATION = re.compile(
    r"\b(\d{1,6}(?:\.\d{1,6})?|an?|one|two|three|four|five|six|seven|eight|nine|ten|half an)[\s-]*"
    r"(minute|min|hour|hr|h)s?\b"
)
_NUMBER_WORDS: dict[str, float] = dict(
    zip(
        ("half an", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
        (0.5, *range(1, 11)),
        strict=True,
    )
)
_MOMENT = re.compile(
    r"(?:((?:19|20)\d\d)-(\d\d)-(\d\d))?[ t]?(?:(\d{1,2}):(\d\d)(?::\d\d(?:\.\d+)?)?)?z?"
)
_NUMBER = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?|[-+]?\d+(?:\.\d+)?")
_CURRENCY = "$€£¥%#"
_DOMAIN = re.compile(r"[\w-]+(?:\.[\w-]+)*\.[a-z][a-z0-9-]+(?:[/:?#].*)?")
_ANY_DIGIT = re.compile(r"\d")
_MIN_CODE_CHARS = 6

Date = tuple[int, int, int | None]
"""Month, day, and the year if it was given."""


def normalize(text: str) -> str:
    """Text in a normal form: NFKC, and without capitals."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def tokenize(text: str) -> list[str]:
    """The words, numbers, addresses and links of a normalized text, without punctuation."""
    if _SEPARATORS.search(text):
        text = _SPLIT.sub(" ", text)
    return [token for piece in text.split() if (token := piece.strip(_PUNCTUATION))]


def without_possessive(token: str) -> str:
    """A word without a possessive `'s`."""
    return token[:-2] if token.endswith(("'s", "’s")) else token


def parse_number(token: str) -> float | None:
    """The value of a token that is a number, with or without a currency sign."""
    digits = token.strip(_CURRENCY)
    return float(digits.replace(",", "")) if _NUMBER.fullmatch(digits) else None


def is_address(token: str) -> bool:
    """Whether a token is an address: a link, a host, a mail address, a file name."""
    return (
        "@" in token
        or "://" in token
        or (bool(_DOMAIN.fullmatch(token)) and parse_number(token) is None)
    )


def is_long_code(token: str) -> bool:
    """Whether a token may be a secret or an account number: long, and with digits."""
    if len(token) < _MIN_CODE_CHARS or token.isalpha():
        return False
    digits = sum(char.isdigit() for char in token)
    if not digits or parse_moment(token) is not None:
        return False
    mixed = any(char.isalpha() for char in token)
    return digits >= _MIN_CODE_CHARS or (mixed and digits > 1)


def parse_moment(value: str) -> tuple[Date | None, int | None] | None:
    """The date and time of a normalized value; the time in minutes. None if it is neither."""
    found = _MOMENT.fullmatch(value)
    if found is None or not value:
        return None
    year, month, day, hour, minute = found.groups()
    if year is None and hour is None:
        return None
    date = None if year is None else (int(month), int(day), int(year))
    return date, None if hour is None else int(hour) * 60 + int(minute)


class MentionedTimes:
    """The dates, times and durations that texts mention."""

    __slots__ = ("days", "durations", "times", "years")

    def __init__(self) -> None:
        self.days: set[tuple[int, int]] = set()
        self.years: set[int] = set()
        self.times: set[int] = set()
        self.durations: set[int] = set()
        """Both in minutes."""

    def add(self, text: str) -> str:
        """Record the times in a normalized text; returns the text without them."""
        if not _ANY_DIGIT.search(text):
            return _DURATION.sub(self._record, text) if "hour" in text else text
        for pattern in (_ISO, _MONTH_FIRST, _DAY_FIRST, _YEAR_ALONE, _DURATION, _CLOCK, _HOUR):
            text = pattern.sub(self._record, text)
        return text

    def _record(self, found: re.Match[str]) -> str:
        groups = found.groups()
        if found.re is _ISO:
            self._date(int(groups[1]), int(groups[2]), groups[0])
        elif found.re is _MONTH_FIRST:
            self._date(MONTHS.index(groups[0][:3]) + 1, int(groups[1]), groups[2])
        elif found.re is _DAY_FIRST:
            self._date(MONTHS.index(groups[1][:3]) + 1, int(groups[0]), groups[2])
        elif found.re is _YEAR_ALONE:
            self.years.add(int(groups[0]))
        elif found.re is _DURATION:
            count = _NUMBER_WORDS.get(groups[0]) or (
                1 if groups[0] in ("a", "an") else float(groups[0])
            )
            self.durations.add(round(count * (60 if groups[1].startswith("h") else 1)))
        elif found.re is _CLOCK:
            hour, minute, half, plain_hour, plain_minute = groups
            self._time(int(hour or plain_hour), int(minute or plain_minute), half)
        else:
            self._time(int(groups[0]), 0, groups[1])
        return " "

    def _date(self, month: int, day: int, year: str | None) -> None:
        self.days.add((month, day))
        if year:
            self.years.add(int(year))

    def _time(self, hour: int, minute: int, half: str | None) -> None:
        if half:
            hour = hour % 12 + (12 if half == "p" else 0)
        self.times.add(hour * 60 + minute)

    def has_date(self, date: Date) -> bool:
        """Whether a date was mentioned; any date will do if none was mentioned at all."""
        month, day, year = date
        if self.days and (month, day) not in self.days:
            return False
        return year is None or not self.years or year in self.years

    def has_time(self, time: int) -> bool:
        """Whether a time was mentioned, or follows from a mentioned duration, or none was."""
        if not self.times or time in (0, 23 * 60 + 59) or time in self.times:
            return True
        return any((time - duration) % (24 * 60) in self.times for duration in self.durations)


def numbers_in(found: list[str]) -> Iterator[float]:
    """The numbers among tokens."""
    for token in found:
        value = None if token.isalpha() else parse_number(token)
        if value is not None:
            yield value
