"""Letting an edge in over HTTP: a link, a command, and a picture of the link."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.edge.joining import JoinInvitation, join_link, qr_lines, qr_rows, read_link
from evoclaw.wiring.fleet import BrokerLogin, write_broker_login
from tests.support.service import running_service

URL, TOKEN = "mqtts://[2001:db8::1]:8883", "pi." + "a" * 48
FINDER = ("1111111", "1000001", "1011101", "1011101", "1011101", "1000001", "1111111")
"""What is in three corners of every QR code."""


async def test_an_invitation_contains_a_link_a_command_and_a_qr_code(tmp_path: Path) -> None:
    write_broker_login(tmp_path, BrokerLogin("mqtt://192.0.2.7:1883", "orchestrator", "secret"))
    async with running_service(tmp_path) as up:
        answer = await (await up.client_with("fleet:write")).post(
            "/v1/fleet/invitations", {"agent_id": "pi"}
        )
        assert answer.status == 201, answer.body
        found = answer.json
    assert read_link(found["link"]) == JoinInvitation(found["url"], found["token"])
    assert found["url"] == "mqtt://192.0.2.7:1883" and found["token"].startswith("pi.")
    assert shlex.split(found["command"]) == ["evoclaw", "edge", "join", found["link"]]
    assert found["qr"] == list(qr_rows(found["link"]))
    assert "secret" not in answer.body.decode()


def test_a_qr_code_has_finder_patterns_and_a_quiet_zone() -> None:
    rows = qr_rows(join_link(URL, TOKEN, "pi"))
    size = len(rows)
    assert {len(row) for row in rows} == {size} and set("".join(rows)) == {"0", "1"}
    assert not any("1" in row for row in (*rows[:4], *rows[-4:]))
    for top, left in ((4, 4), (4, size - 11), (size - 11, 4)):
        assert tuple(row[left : left + 7] for row in rows[top : top + 7]) == FINDER
    assert rows != qr_rows(join_link(URL, TOKEN + "b", "pi"))


def test_the_terminal_qr_code_equals_the_qr_rows() -> None:
    rows = qr_rows("evoclaw://join")
    back = {"█": "00", "▀": "01", "▄": "10", " ": "11"}
    pairs = [[back[letter] for letter in line] for line in qr_lines(rows)]
    found = ["".join(pair[half] for pair in line) for line in pairs for half in (0, 1)]
    assert tuple(found[: len(rows)]) == rows


def test_a_join_link_round_trips() -> None:
    assert read_link(f"  {join_link(URL, TOKEN, 'pi')}\n") == JoinInvitation(URL, TOKEN)
    with_authority = join_link(URL, TOKEN, "pi", "ab" * 32)
    assert read_link(with_authority) == JoinInvitation(URL, TOKEN, "ab" * 32)


@pytest.mark.parametrize(
    "link",
    [
        "evoclaw://join",
        "evoclaw://join?url=mqtt%3A%2F%2Fx&name=pi",
        "evoclaw://leave?" + join_link(URL, TOKEN, "pi").partition("?")[2],
        join_link(URL, TOKEN, "another"),
        join_link(URL, TOKEN, "pi") + "&url=mqtt://evil",
        join_link(URL, TOKEN, "pi") + "&more=1",
        join_link(URL, TOKEN, "pi", "not a fingerprint"),
        join_link("mqtt://x\x1b[2J", TOKEN, "pi"),
        join_link(URL, "pi." + "a" * 3_000, "pi"),
        "evoclaw://[join?url=x&token=pi.x&name=pi",
    ],
)
def test_an_incomplete_or_tampered_join_link_is_refused(link: str) -> None:
    with pytest.raises(ConfigError, match="not a complete invitation"):
        read_link(link)
