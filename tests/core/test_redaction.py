"""Secrets are taken out by schema, by name, by shape and by value; nothing else is."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core import redaction
from evoclaw.core.redaction import (
    OMITTED,
    Redactor,
    is_secret_name,
    looks_random,
    secret_fields_of,
    secrets_in,
)

# Put together here, so that scanners for secrets do not take this file for a leak.
GITHUB = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
JWT = "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVPmB92K27uhbUJU1p1r"
PEM = "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE " + "KEY-----"

SHAPES = {
    "aws-key": "AKIA" + "IOSFODNN7EXAMPL2",
    "github-token": GITHUB,
    "github-token ": "github_pat_" + "11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz",
    "gitlab-token": "glpat-" + "x7Yz12345678901234ab",
    "slack-token": "xoxb-" + "123456789012-abcdefGHIJKL",
    "api-key": "sk-" + "proj-abc123DEF456ghi789",
    "api-key ": "sk-ant-" + "api03-abc123DEF456ghi789",
    "api-key  ": "sk_live_" + "abc123DEF456ghi789",
    "google-key": "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "registry-token": "npm_" + "abcdefghijklmnopqrstuvwxyz0123456789",
    "bot-token": "123456789:" + "AAabcdefghijklmnopqrstuvwxyz0123456",
    "jwt": JWT,
    "private-key": PEM,
}


@pytest.mark.parametrize("kind", SHAPES)
def test_well_known_token_formats_are_redacted_inside_text(kind: str) -> None:
    secret = SHAPES[kind]

    said = Redactor().text(f"I saw {secret} there, and went on")

    assert said == f"I saw [redacted:{kind.strip()}] there, and went on"


@pytest.mark.parametrize("kind", sorted({*SHAPES} - {"aws-key", "bot-token", "private-key"}))
def test_long_tokens_are_redacted_completely(kind: str) -> None:
    said = Redactor().text(f"I saw {SHAPES[kind]}{'a1B2c3D4' * 2_000} there")

    assert len(said) < 60


@pytest.mark.parametrize(
    "before",
    ["password=", "Authorization: Bearer ", "Cookie: ", "bearer ", "?token=", "--token ", "key: "],
)
def test_long_values_of_secret_names_are_redacted_completely(before: str) -> None:
    assert len(Redactor().text(before + "a1B2c3D4" * 2_000)) < 60
    assert len(Redactor().text(f"https://u:{'a1B2c3D4' * 2_000}@host/")) < 60


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abc.def-ghi", "abc.def-ghi"),
        ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ('curl -H "Authorization: token s3cr3tvalue" x', "s3cr3tvalue"),
        ("Cookie: session=abc; theme=dark", "abc"),
        ("Set-Cookie: sid=q1w2e3r4; Path=/", "q1w2e3r4"),
        ("https://user:hunter2@example.org/x", "hunter2"),
        ("postgresql://app:p%40ss@db:5432/x", "p%40ss"),
        ("GET https://example.org/a?user=1&token=hunter2&b=2", "hunter2"),
        ("GET /a?sig=zzz", "zzz"),
        ("password=hunter2", "hunter2"),
        ("PASSWORD = 'two words here'", "two words here"),
        ('{"client_secret": "hunter2"}', "hunter2"),
        ('{\\"api_key\\": \\"hunter2\\"}', "hunter2"),
        ("export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"),
        ("mysql --password hunter2 -h x", "hunter2"),
        ("tool --api-key=hunter2", "hunter2"),
        ("curl -u admin:hunter2 https://x", "hunter2"),
        ("sshpass -p hunter2 ssh x", "hunter2"),
        ("the key: q8Zx71LmPs02Vb", "q8Zx71LmPs02Vb"),
        ("used bearer q8Zx71LmPs02Vb there", "q8Zx71LmPs02Vb"),
        (PEM[:-20], "IBAAKC"),
    ],
)
def test_the_value_after_a_secret_name_is_redacted(text: str, secret: str) -> None:
    said = Redactor().text(text)

    assert secret not in said
    assert "[redacted:" in said


@pytest.mark.parametrize(
    "text",
    [
        "ls -la /tmp && git log --oneline",
        "a basic understanding of bearer bonds and token economies",
        "max_tokens: 100, primary_key: id, keyboard=qwerty",
        "commit 9081849f1d2c3b4a5968778695a4b3c2d1e0f9a8",
        "the key: value",
        "ssh://git@example.org/x.git and https://example.org/a?page=2",
        "monkey=banana; the author: Ann",
        "",
        "x",
    ],
)
def test_ordinary_text_is_not_redacted(text: str) -> None:
    assert Redactor().text(text) == text


SECRET = "corr?ct horse/battery+9"


@pytest.mark.parametrize(
    "spelled",
    [
        SECRET,
        quote(SECRET, safe=""),
        quote(SECRET, safe="").replace("%20", "+"),
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        json.dumps({"x": SECRET}),
        *(
            encode(b"x" * before + SECRET.encode() + b"y" * after).decode()
            for encode in (base64.b64encode, base64.urlsafe_b64encode)
            for before in range(4)
            for after in range(4)
        ),
    ],
)
def test_a_known_secret_is_redacted_in_every_usual_encoding(spelled: str) -> None:
    said = Redactor([SECRET]).text(f"<{spelled}>")

    assert "[redacted:known]" in said
    assert SECRET not in said
    core = base64.b64encode(SECRET.encode()).decode()[4:-4]
    assert core not in said


def test_short_values_are_not_treated_as_secrets() -> None:
    assert Redactor(["", "a", "yes"]).text("yes, a day") == "yes, a day"


def test_a_secret_across_the_length_limit_is_redacted_completely() -> None:
    for shift in range(60):
        text = "x " * 20 + " " * shift + GITHUB + " tail" * 50
        said = Redactor().text(text, 70)
        assert GITHUB[:9] not in said, said
        assert said.endswith("more]")


def test_the_length_limit_bounds_the_redacted_text() -> None:
    assert len(Redactor().text("word " * 1_000_000, 100)) < 130
    assert Redactor().text("short", 100) == "short"


def test_fields_are_redacted_by_name_at_any_depth() -> None:
    given: dict[str, Any] = {
        "url": "https://x",
        "headers": {"X-Api-Key": "hunter2", "Accept": "json"},
        "list": [{"password": ["a", "b"]}, {"name": "Authorization", "value": "plain words"}],
        "token": 12345,
        "max_tokens": 5,
        "use_password": True,
        "primary_key": "id",
        "secret": None,
    }

    said = Redactor().value(given)

    assert said == {
        "url": "https://x",
        "headers": {"X-Api-Key": "[redacted:named]", "Accept": "json"},
        "list": [
            {"password": "[redacted:named]"},
            {"name": "Authorization", "value": "[redacted:named]"},
        ],
        "token": "[redacted:named]",
        "max_tokens": 5,
        "use_password": True,
        "primary_key": "id",
        "secret": None,
    }


def test_fields_marked_secret_in_the_schema_are_redacted() -> None:
    schema: dict[str, Any] = {
        "$defs": {"hush": {"type": "string", "writeOnly": True}},
        "properties": {
            "plain": {"type": "string"},
            "door": {"type": "string", "format": "password"},
            "inner": {"properties": {"code": {"writeOnly": True}, "name": {}}},
            "codes": {"items": {"anyOf": [{"$ref": "#/$defs/hush"}, {"type": "null"}]}},
            "map": {"additionalProperties": {"allOf": [{"format": "password"}]}},
        },
    }
    marks = secret_fields_of(schema)

    said = Redactor().value(
        {
            "plain": "see",
            "door": "sesame",
            "inner": {"code": 4711, "name": "Ann"},
            "codes": ["one", None, "two"],
            "map": {"a": "b"},
        },
        marks,
    )

    assert said == {
        "plain": "see",
        "door": "[redacted:marked]",
        "inner": {"code": "[redacted:marked]", "name": "Ann"},
        "codes": ["[redacted:marked]", None, "[redacted:marked]"],
        "map": {"a": "[redacted:marked]"},
    }


def test_a_schema_without_secret_marks_or_with_a_cycle_has_no_marks() -> None:
    assert secret_fields_of({"properties": {"a": {"type": "string"}}}) is None
    assert secret_fields_of({"$ref": "#"}) is None
    assert secret_fields_of({"properties": {"a": {"$ref": "#/properties/a"}}}) is None


def test_a_secret_used_as_a_field_name_is_redacted() -> None:
    assert list(Redactor().value({GITHUB: 1})) == ["[redacted:github-token]"]


def test_with_a_key_equal_secrets_get_the_same_placeholder() -> None:
    redactor = Redactor(key=b"k" * 32)

    one, two = redactor.text(f"a {GITHUB}"), redactor.text(f"b {GITHUB} c")
    other = redactor.text(f"a {GITHUB[:-1]}X")

    assert one.split()[1] == two.split()[1] != other.split()[1]
    assert one.startswith("a [redacted:github-token#")
    assert one != Redactor(key=b"j" * 32).text(f"a {GITHUB}")


def test_exception_messages_are_redacted() -> None:
    said = Redactor(["swordfish9"]).error(ValueError(f"bad swordfish9 and {GITHUB}"))

    assert said == "ValueError: bad [redacted:known] and [redacted:github-token]"


def test_values_too_deep_or_too_many_are_omitted() -> None:
    deep: Any = GITHUB
    for _ in range(100):
        deep = [deep]
    said = json.dumps(Redactor().value({"deep": deep, "many": [{}] * 20_000}))

    assert GITHUB not in said
    assert OMITTED in said


def test_secrets_are_collected_from_the_environment_by_name() -> None:
    env = {
        "OPENAI_API_KEY": "abcdefgh",
        "HOME": "/home/me",
        "DB_PASSWORD": "12345678",
        "TOKEN": "x",
    }

    assert set(secrets_in(env)) == {"abcdefgh", "12345678"}


def test_is_secret_name_recognises_secret_names() -> None:
    secret = "password DB_PASSWORD apiKey x-api-key Authorization cookie access_token clientSecret"
    plain = "path query max_tokens primary_key keyboard tokens author compass pinned key_path"
    assert [name for name in secret.split() if not is_secret_name(name)] == []
    assert [name for name in plain.split() if is_secret_name(name)] == []


def test_looks_random_tells_tokens_from_words() -> None:
    assert not any(map(looks_random, ["understanding", "configuration", "hello", "12345678"]))
    assert all(map(looks_random, ["q8Zx71LmPs02Vb", "dXNlcjpwYXNz", "a" * 5 + "B7c9D1e3"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        "eyJ", "eyJa.", "sk-", "password=", 'password="', "a" * 41 + "password", "://", "a://b:",
        "-----BEGIN PRIVATE " + "KEY-----", "authorization:", "Cookie: a", "--token ", "-", "x:y@",
        "bearer ", "ghp_", "?token=", "\\\"'", "http://" + "u" * 300, "A", "key:", "\n", "é",
    ],
)  # fmt: skip
def test_redaction_takes_linear_time(piece: str) -> None:
    # A quadratic search would take hours for these.
    text = piece * (200_000 // len(piece))

    assert isinstance(Redactor(["swordfish9"]).text(text), str)


@given(st.text(), st.text())
def test_a_known_secret_is_always_redacted(before: str, after: str) -> None:
    assert "swordfish9" not in Redactor(["swordfish9"]).text(f"{before}swordfish9{after}")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON_VALUES)
def test_any_value_can_be_redacted(value: Any) -> None:
    Redactor(["swordfish9"], key=b"k").value(value, limit=50)


def test_the_secret_fields_of_a_schema_are_found_once_while_it_is_in_use() -> None:
    def schema() -> dict[str, Any]:
        return {"properties": {"pin": {"type": "string", "writeOnly": True}}}

    first, other = schema(), schema()
    marks = secret_fields_of(first)
    assert marks is not None and marks.fields["pin"].is_secret
    assert secret_fields_of(first) is marks
    assert secret_fields_of(other) == marks
    for _ in range(redaction.MAX_KNOWN_SCHEMAS + 1):
        secret_fields_of(schema())
    known = redaction._secret_fields_of.cache_info()  # pyright: ignore[reportPrivateUsage]
    assert known.currsize == known.maxsize == redaction.MAX_KNOWN_SCHEMAS
