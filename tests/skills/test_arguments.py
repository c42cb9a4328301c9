"""From arguments to a command line."""

from __future__ import annotations

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON
from evoclaw.skills.arguments import (
    MAX_ARGUMENT_BYTES,
    CommandLine,
    argument_bindings,
    build_command_line,
)

SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "limit": {"type": "integer"},
        "deep": {"type": "boolean"},
        "color": {"type": "boolean", "default": True},
        "words": {"type": "array"},
        "where": {"type": "object"},
        "content": {"type": "string"},
    },
}


def line(args: str | dict[str, str] = "options", **arguments: JSON) -> CommandLine:
    ways, problem = argument_bindings(SCHEMA, args)
    assert not problem
    return build_command_line(ways, arguments, args if isinstance(args, str) else "")


def test_values_are_joined_to_their_options() -> None:
    assert line(path="a b", limit=3).arguments == ("--path=a b", "--limit=3")


def test_values_may_be_words_of_their_own() -> None:
    """As programs expect it that were written for other edges."""
    said = line("words", path="/etc/hostname", limit=-3, deep=True, content="a -b").arguments
    assert said == (
        *("--path", "/etc/hostname", "--limit", "-3", "--deep", "true", "--content", "a -b"),
    )
    ways, problem = argument_bindings({"properties": {"no option": {}}}, "words")
    assert (ways, "'no option' cannot be an option" in problem) == ({}, True)


def test_booleans_become_flags_and_default_true_ones_can_be_negated() -> None:
    assert line(deep=True, color=True).arguments == ("--deep", "--color")
    assert line(deep=False, color=False).arguments == ("--no-color",)


def test_arrays_and_objects_are_passed_as_json() -> None:
    assert line(words=["a", 1, None], where={"x": True}).arguments == (
        '--words=["a",1,null]',
        '--where={"x":true}',
    )


def test_a_parameter_can_be_passed_on_stdin() -> None:
    assert line({"content": "stdin"}, path="x", content="é\n") == CommandLine(
        ("--path=x",), "é\n".encode()
    )


def test_null_arguments_are_omitted() -> None:
    assert line(path=None, limit=1).arguments == ("--limit=1",)


def test_all_arguments_can_be_passed_as_json_on_stdin() -> None:
    assert line("json", path="-x") == CommandLine((), b'{"path":"-x"}')


@pytest.mark.parametrize(
    "value", ["-rf", "--upload-pack=sh", "-exec", "a\n--flag", "$(id)", "; id"]
)
def test_fault_41_a_value_is_never_an_option(value: str) -> None:
    assert line(path=value).arguments == (f"--path={value}",)
    assert line({"path": "positional"}, path=value, deep=True).arguments == (
        "--deep",
        "--",
        value,
    )
    assert line({"words": "rest"}, words=[value, "b"]).arguments == ("--", value, "b")


@pytest.mark.parametrize("key", ["-x", "--exec", "a=b", "a\nb", "", "a b", "é"])
def test_fault_41_a_parameter_name_that_is_no_plain_word_is_refused(key: str) -> None:
    schema: dict[str, JSON] = {"type": "object", "properties": {key: {"type": "string"}}}
    _, problem = argument_bindings(schema, "options")
    assert "cannot be an option" in problem


def test_fault_41_an_undeclared_argument_is_refused() -> None:
    with pytest.raises(ToolFailure, match="Unknown parameter"):
        line(**{"--exec": "id"})


def test_nul_characters_and_oversized_values_are_refused() -> None:
    with pytest.raises(ToolFailure, match="NUL"):
        line(path="a\0b")
    with pytest.raises(ToolFailure, match="bytes"):
        line(path="x" * (MAX_ARGUMENT_BYTES + 1))
    with pytest.raises(ToolFailure, match="Unicode"):
        line(path="\ud800")
    assert line({"content": "stdin"}, content="x" * (MAX_ARGUMENT_BYTES * 2)).stdin == b"x" * (
        MAX_ARGUMENT_BYTES * 2
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("shell", "must be 'options', 'words', 'json'"),
        ({"nobody": "stdin"}, "has no parameter 'nobody'"),
        ({"path": "-p"}, "must be one of option, flag"),
        ({"path": "flag"}, "of type boolean"),
        ({"path": "rest"}, "of type array"),
        ({"path": "stdin", "content": "stdin"}, "both use"),
        ({"path": "--limit"}, "both use"),
        ({"words": "rest", "path": "positional"}, "must come last"),
    ],
)
def test_an_invalid_argument_mapping_is_refused(args: str | dict[str, str], said: str) -> None:
    assert said in argument_bindings(SCHEMA, args)[1]


def test_an_option_name_can_be_customized() -> None:
    assert line({"limit": "--max-count"}, limit=2).arguments == ("--max-count=2",)
