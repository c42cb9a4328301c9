"""Entries of an array of tables as text: found, replaced, and nothing else touched."""

from __future__ import annotations

import tomllib

import pytest

from evoclaw.core.toml_entries import append_entry, array_entries, replace_entry

TEXTS = [
    "",
    "[server]\nport = 1\n",
    '[[agents]]\nid = "a"\n',
    '# of a\n[[agents]]\nid = "a"\n\n# of b\n[[agents]] # second\nid = "b"\n',
    '[[agents]]\nid = "a"\n[agents.limits]\nmax_turns = 1\n[["agents".more]]\nx = 1\n[z]\ny = 2\n',
    '[[agents]]\nid = "a"\ntext = """\n[[agents]]\n# no comment\n"""\n[z]\n',
    '[[agents]]\nid = "a"\nlists = [\n  [1],\n  # [x]\n]\n\n\n# about z\n[z]\nb = 1\n',
    '[[agents]]\nid = "a"\n\n[z]\n\n[[agents]]\nid = "b"',
    '[[agents]]\r\nid = "a"\r\n\r\n[z]\r\nb = 1\r\n',
    "[[agents]]\nid = \"a\"\nt = '''\n# end'''\n[[agents]]\nid = \"b\"\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_every_entry_is_found_with_its_values_and_replacing_it_by_itself_changes_nothing(
    text: str,
) -> None:
    entries = array_entries(text, "agents")

    assert [entry.values for entry in entries] == tomllib.loads(text).get("agents", [])
    for entry in entries:
        assert replace_entry(text, entry, entry.text) == text


@pytest.mark.parametrize("text", TEXTS)
def test_removing_or_changing_an_entry_leaves_all_other_values(text: str) -> None:
    whole = tomllib.loads(text)
    agents = whole.pop("agents", [])
    for number, entry in enumerate(array_entries(text, "agents")):
        left = tomllib.loads(replace_entry(text, entry, ""))
        assert left.pop("agents", []) == [*agents[:number], *agents[number + 1 :]]
        assert left == whole
        changed = tomllib.loads(replace_entry(text, entry, '[[agents]]\nid = "new"\n'))
        assert changed["agents"][number] == {"id": "new"}


@pytest.mark.parametrize("text", TEXTS)
def test_an_appended_entry_is_the_last(text: str) -> None:
    changed = append_entry(text, '[[agents]]\nid = "new"\n')

    assert changed.startswith(text.rstrip())
    assert tomllib.loads(changed)["agents"][-1] == {"id": "new"}


def test_the_comment_above_an_entry_belongs_to_it() -> None:
    first, second = array_entries(TEXTS[3], "agents")

    assert first.text == '# of a\n[[agents]]\nid = "a"'
    assert second.text == '# of b\n[[agents]] # second\nid = "b"'
    assert "of b" not in replace_entry(TEXTS[3], second, "")
