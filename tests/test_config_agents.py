"""`[[agents]]`: everything that an agent can be, and every mistake named with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from evoclaw.config import EvoClawConfig, read_evoclaw_toml
from evoclaw.core.agent import FieldType
from evoclaw.core.errors import ConfigError
from evoclaw.governance.autonomy import Level

Read = Callable[[str], EvoClawConfig]

WHOLE = """
[orchestrator]
max_tool_iterations = 7

[[agents]]
id = "scout"
name = "The Scout"
description = "Looks things up."
model = ["ollama/a", "openai/b"]
prompt_file = "scout.md"
capabilities = ["file_read", "network"]
autonomy = "read_only"
skills = ["mapping"]
tools = ["read", "webfetch"]
on = "pi-1"
constraints = ["Never name a customer."]
spec_capabilities = ["P-01"]
dependencies = ["writer"]
owner = "team-maps"

[agents.limits]
max_turns = 5
max_seconds = 60
temperature = 0.2
max_tokens = 400

[agents.budget]
tokens = 10_000
dollars = 0.5

[agents.inputs.city]
type = "string"
description = "Where."
required = true

[agents.inputs]
radius = { type = "number" }

[agents.outputs.places]
type = "array"

[[agents]]
id = "writer"
model = "ollama/c"

[memory]
enabled = true
top_k = 3
keep_days = 30
"""


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def one(text: str) -> EvoClawConfig:
        (tmp_path / "scout.md").write_text("You scout.\n")
        path = tmp_path / "evoclaw.toml"
        path.write_text(text)
        return read_evoclaw_toml(path, {"HOME": "/home/pi"})

    return one


def test_an_agent_with_every_setting_is_loaded(read: Read) -> None:
    config = read(WHOLE)
    scout, writer = config.agents
    assert (scout.id, scout.name, scout.prompt) == ("scout", "The Scout", "You scout.\n")
    assert scout.model == ("ollama/a", "openai/b") and writer.model == "ollama/c"
    assert scout.autonomy is Level.READ_ONLY and writer.autonomy is None
    assert scout.inputs["city"].required and scout.inputs["radius"].type is FieldType.NUMBER
    assert list(scout.outputs) == ["places"]
    assert (scout.limits.max_turns, scout.limits.max_parallel) == (5, None)
    assert (scout.budget.tokens, scout.budget.turns) == (10_000, None)
    assert (writer.tools, scout.tools) == (None, ("read", "webfetch"))
    assert (config.memory.top_k, config.memory.keep_days) == (3, 30)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[agents.limits]\nmax_trns = 3", "line 4: unknown key 'max_trns' in [agents.limits]; did"),
        (
            "[agents.limits]\nmax_turns = 0",
            "line 4: agents.0.limits.max_turns: Expected `int` >= 1",
        ),
        ("[agents.limits]\ntemperature = 3", "line 4: agents.0.limits.temperature: Expected"),
        ('autonomy = "ful"', "line 3: agents.0.autonomy: Invalid enum value 'ful'; allowed: read_"),
        ('evolution = { proposers = ["gpa"] }', "Invalid enum value 'gpa'; allowed: numbers, "),
        ('inputs = { a = { type = "sting" } }', "Invalid enum value 'sting'; allowed: string, int"),
        ('[agents.inputs.a]\nkind = "x"', "line 4: unknown key 'kind' in [agents.inputs.a]"),
        ('[agents.inputs."a b"]\ntype = "string"', "'a b' is not a valid field name"),
        ('on = "no id"', "line 3: agents.0.on: 'no id' is not a valid id"),
        ('capabilities = ["file_raed"]', "line 3: unknown capability 'file_raed'; did you mean"),
        ('dependencies = ["b"]', "line 3: dependencies: unknown agent 'b'"),
        ('dependencies = ["a"]', "line 3: dependencies: unknown agent 'a'"),
        ("model = []", "line 3: model: the list is empty"),
        ('model = ["x/y,z/w"]', "line 3: model: write 'x/y,z/w' as separate"),
        ('prompt_file = "nowhere.md"', "line 3: prompt_file: the file"),
        ('prompt = "x"\nprompt_file = "scout.md"', "line 4: prompt and prompt_file set the same"),
        ('[agents.budget]\nper = "1h"', "line 4: 'per' is not known here"),
        ("constraints = [1]", "line 3: agents.0.constraints.0: Expected `str`"),
        ("max_turns = 3", "line 3: unknown key 'max_turns' in [agents]"),
    ],
)
def test_an_error_is_reported_with_its_line(read: Read, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(f'[[agents]]\nid = "a"\n{text}')
    assert said in str(refused.value)


def test_errors_in_tables_of_the_second_agent_have_the_right_line(read: Read) -> None:
    text = '[[agents]]\nid = "a"\n[agents.limits]\nmax_turns = 1\n[[agents]]\nid = "b"\n'
    with pytest.raises(ConfigError, match=r"line 8: unknown key 'max_turn' in \[agents.limits\]"):
        read(text + "[agents.limits]\nmax_turn = 1")


@pytest.mark.parametrize("said", ["top_k = 21", "keep_days = 0", "most_chars = 10", "topk = 1"])
def test_invalid_memory_settings_are_refused(read: Read, said: str) -> None:
    with pytest.raises(ConfigError, match=r"line 2: .*(memory|topk)"):
        read(f"[memory]\n{said}")
