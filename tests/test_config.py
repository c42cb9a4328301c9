"""The two configuration files: documented examples load as they stand, mistakes are named."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evoclaw.config import (
    COMMANDS,
    BrokerConfig,
    EdgeConfig,
    Engine,
    EvoClawConfig,
    broker_password,
    default_data_folder,
    read_agent_toml,
    read_evoclaw_toml,
    write_agent_toml,
)
from evoclaw.core.errors import ConfigError
from evoclaw.governance.autonomy import Level
from evoclaw.transport.address import Address
from evoclaw.transport.topics import is_agent_id

HOME = {"HOME": "/home/pi"}

SENSOR = """
agent_id   = "alex-eye"
agent_type = "monitor"

# One-line summary of what this agent can do.
# Shown to the orchestrator LLM to decide when/how to call this agent.
# If omitted, a default is generated from agent_type.
capabilities = "Pi sensor node — CPU/memory/disk stats, temperature, process monitoring"
"""

DESKTOP = """
[agent]
type = "desktop"
capabilities = [
    "file_read",
    "file_write",
    "shell"
]

[tools]
sandboxing = "firejail"
timeout_ms = 30000

[tools.paths]
bin = "~/.evoclaw/skills/desktop-tools/bin"
"""

ORCHESTRATOR = """
[orchestrator]
tool_loop_enabled = true
max_tool_iterations = 10
tool_error_limit = 3
default_tool_timeout_ms = 30000

[orchestrator.tools]
skills_path = "~/.evoclaw/skills"
enable_sandboxing = true
sandbox_engine = "firejail"  # none, firejail, bubblewrap, podman

[orchestrator.tools.permissions]
file_read = true
file_write = true
shell = true
network = true
git = true
session = false
"""

Edge = Callable[..., EdgeConfig]
Brain = Callable[..., EvoClawConfig]


@pytest.fixture
def edge(tmp_path: Path) -> Edge:
    def read(text: str, **env: str) -> EdgeConfig:
        (tmp_path / "agent.toml").write_text(text)
        return read_agent_toml(tmp_path / "agent.toml", HOME | env)

    return read


@pytest.fixture
def brain(tmp_path: Path) -> Brain:
    def read(text: str, **env: str) -> EvoClawConfig:
        (tmp_path / "evoclaw.toml").write_text(text)
        return read_evoclaw_toml(tmp_path / "evoclaw.toml", HOME | env)

    return read


def refusal(read: Callable[..., object], text: str, **env: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text, **env)
    return str(caught.value)


def test_a_sensor_file_gives_a_summary_and_no_capabilities(edge: Edge) -> None:
    config = edge(SENSOR)
    assert (config.agent_id, config.agent_type) == ("alex-eye", "monitor")
    assert config.summary.startswith("Pi sensor node — CPU/memory/disk")
    assert config.capabilities == frozenset()
    assert config.data == Path("/home/pi/.evoclaw/edge/alex-eye")
    assert config.workspace == config.data / "workspace"
    assert config.level is Level.FULL
    limits = config.limits
    assert (limits.concurrency, limits.queue, limits.dedupe_hours) == (4, 100, 24)
    assert (limits.output_bytes, limits.artifact_bytes) == (65_536, 10_000_000)
    assert (config.heartbeat_s, config.broker.address()) == (30, Address("127.0.0.1"))


def test_a_desktop_file_gives_capabilities_and_a_generated_agent_id(edge: Edge) -> None:
    config = edge(DESKTOP)
    assert config.capabilities == {"file_read", "file_write", "shell"}
    assert config.tools.sandboxing is Engine.FIREJAIL
    assert config.tools.timeout_ms == 30_000
    assert config.tools.paths.bin == Path("/home/pi/.evoclaw/skills/desktop-tools/bin")
    assert is_agent_id(config.agent_id)
    assert config.summary == f"{config.agent_id} edge agent"


@pytest.mark.parametrize("key", ["skills_path", "tools_path", "paths.bin"])
def test_an_edge_loads_no_code_from_a_folder_that_its_tools_can_change(
    edge: Edge, key: str
) -> None:
    table, _, name = f"tools.{key}".rpartition(".")
    inside = f'workspace = "/w"\n[{table}]\n{name} = "/w/x/bin"\n'
    assert f"tools.{key}: '/w/x/bin' lies inside '/w'" in refusal(edge, inside)
    writable = f'[sandbox]\nwritable = ["/srv"]\n[{table}]\n{name} = "/srv/x/bin"\n'
    assert "lies inside '/srv'" in refusal(edge, writable)
    assert edge(inside.replace("/w/x", "/x")).tools.folders == {key: Path("/x/bin")}


def test_two_mcp_servers_of_an_edge_need_two_names(edge: Edge) -> None:
    server = '[[mcp]]\nname = "time"\ncommand = ["time-server"]\n'
    assert [found.name for found in edge(server).mcp] == ["time"]
    assert "two MCP servers have the name 'time'" in refusal(edge, server + server)


def test_a_permission_of_an_own_tool_may_resemble_a_built_in_one(
    edge: Edge,
) -> None:
    assert edge('agent_id = "a"\ncapabilities = ["dice"]').capabilities == {"dice"}


def test_summary_and_capabilities_may_be_in_one_file(edge: Edge) -> None:
    config = edge(SENSOR + '[agent]\ncapabilities = ["*"]\n')
    assert config.summary.startswith("Pi sensor node")
    assert config.capabilities == {"*"}
    listed = edge('agent_id = "a"\ncapabilities = ["git"]')
    assert (listed.capabilities, listed.summary) == ({"git"}, "a edge agent")
    inside = edge('[agent]\nid = "a"\ncapabilities = "one\\n line"')
    assert (inside.capabilities, inside.summary) == (frozenset(), "one line")


@pytest.mark.parametrize(
    ("kind", "summary"),
    [
        ("sensor", "x sensor node — temperature, CPU/memory/disk stats, process monitoring, "),
        ("monitor", "x sensor node — temperature, CPU/memory/disk stats, process monitoring, "),
        ("trader", "x trading agent — market data, order execution, position management"),
        ("governance", "x governance agent — on-chain voting, proposal management"),
        ("toaster", "x edge agent"),
    ],
)
def test_without_a_summary_the_agent_type_provides_one(edge: Edge, kind: str, summary: str) -> None:
    assert edge(f'agent_id = "x"\nagent_type = "{kind}"').summary.startswith(summary)


def test_the_documented_orchestrator_file_loads_unchanged(brain: Brain) -> None:
    config = brain(ORCHESTRATOR).orchestrator
    assert (config.tool_loop_enabled, config.max_tool_iterations) == (True, 10)
    assert (config.tool_error_limit, config.default_tool_timeout_ms) == (3, 30_000)
    assert config.tools.skills_path == Path("/home/pi/.evoclaw/skills")
    assert config.tools.sandbox_engine is Engine.FIREJAIL
    assert config.tools.granted == {"file_read", "file_write", "shell", "network", "git"}


def test_an_empty_file_gives_all_defaults(brain: Brain) -> None:
    config = brain("", EVOCLAW_HOME="/srv/evoclaw")
    assert config.data == Path("/srv/evoclaw")
    assert config.orchestrator.tools.skills_path == Path("/srv/evoclaw/skills")
    assert config.orchestrator.tools.granted is None
    assert (config.agents, config.broker.url) == ((), "mqtt://127.0.0.1:1883")


def test_the_alternative_documented_tools_table_is_accepted(brain: Brain) -> None:
    text = '[tools]\nenabled = false\nskills_path = "/s"\npermissions = ["git"]\n'
    config = brain(text).orchestrator
    assert not config.tool_loop_enabled
    assert (config.tools.skills_path, config.tools.granted) == (Path("/s"), {"git"})
    assert "set the same" in refusal(brain, text + '[orchestrator.tools]\nskills_path = "/t"')


def test_agents_may_be_listed_below_an_agents_header(brain: Brain) -> None:
    agents = """
      [[agents]]
        id = "desktop-agent"
        capabilities = ["file_read", "file_write", "shell", "network"]
      [[agents]]
        id = "b"
        name = "B"
        model = "ollama/x"
    """
    for text in (agents, "[agents]\n" + agents):
        first, second = brain(text).agents
        assert (first.id, len(first.capabilities)) == ("desktop-agent", 4)
        assert (second.name, second.model) == ("B", "ollama/x")
    assert "line 8: two agents have the id 'b'" in refusal(
        brain, '[[agents]]\nid = "b"\n[[agents]]\nid = "c"\n[[agents]]\n# x = 1\n\nid = "b"'
    )
    missing = refusal(brain, '[[agents]]\nid = "a"\n[[agents]]\nname = "b"')
    assert "evoclaw.toml, line 3: agents.1: Object missing required field `id`" in missing
    misspelt = refusal(brain, '[[agents]]\nname = "b"\nid = "a"\n[[agents]]\nid = "b"\nnam = 1')
    assert "line 6: unknown key 'nam' in [agents]; did you mean 'name'?" in misspelt


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[agent]\ncapabilites = ["shell"]',
            "line 2: unknown key 'capabilites' in [agent]; did you mean 'capabilities'?",
        ),
        ("[agnet]\n", "line 1: unknown key 'agnet'; did you mean 'agent'?"),
        ("limits.concurency = 3", "line 1: unknown key 'concurency' in [limits]; did you mean"),
        ("[limits]\n\nconcurrency = 65", "line 3: limits.concurrency: Expected `int` <= 64"),
        ("limits = { queue = -1 }", "line 1: limits.queue: Expected `int` >= 0"),
        ("[limits]\nconcurrency = '4'", "line 2: limits.concurrency: Expected `int`, got `str`"),
        ("level = 'fulll'", "line 1: level: Invalid enum value 'fulll'; allowed: read_only, "),
        ("[tools]\nsandboxing = 'jail'", "allowed: bubblewrap, firejail, podman, native, none"),
        ("[limits]\nworkspace = '/w'", "'workspace' is not known in [limits]; it belongs above"),
        ("keep_alive_s = 3", "line 1: 'keep_alive_s' is not known here; it belongs in [broker]"),
        ("[agent]\n[agent]\n", "is not TOML: Cannot declare ('agent',) twice (at line 2"),
        ("agent = 3", "line 1: [agent] must be a table"),
        ("broker = 3", "line 1: broker: Expected `object`, got `int`"),
        ("[agent]\nid = 'a b'", "line 2: agent.id: 'a b' is not a valid id: letters, digits"),
        ("[agent]\nid = 7", "line 2: agent.id: Expected `str`, got `int`"),
        ("agent_id = 'a'\n[agent]\nid = 'a'", "line 1: agent_id and agent.id set the same value"),
        ("capabilities = 'x'\nsummary = 'y'", "summary and capabilities set the same value"),
        ("agent_type = 'a/b'", "line 1: agent_type: 'a/b' is not a valid id"),
        ("capabilities = ['file_raed']", "line 1: unknown capability 'file_raed'; did you mean"),
        ("capabilities = [1]", "line 1: capabilities.0: Expected `str`, got `int`"),
        ("workspace = ''", "line 1: workspace: a path may not be empty"),
        ("workspace = 3", "line 1: workspace: Expected `str`, got `int`"),
        ("workspace = '~root/x'", "write the home folder of another user as a full"),
        ("commands = ['tol']", "unknown command 'tol'; did you mean 'tool'?"),
        (
            "accept_models = ['catalog']",
            "line 1: accept_models: 'catalog' must be 'catalogue', 'sh",
        ),
        ("accept_models = ['sha256:12']", "line 1: accept_models: 'sha256:12' must be"),
        ("[commands]\nshutdwn = false", "line 2: unknown command 'shutdwn'; did you mean 'shut"),
        ("[commands]\nshutdown = ['k']", "line 2: commands.shutdown: 'k' is not one of the orch"),
        ("summary = 2021-01-01", "line 1: summary: Expected `str`, got `date`"),
        (f"summary = '{'x' * 1001}'", "summary: Expected `str` of length <= 1000"),
    ],
)
def test_an_error_is_reported_with_its_line_and_the_allowed_values(
    edge: Edge, tmp_path: Path, text: str, said: str
) -> None:
    error = refusal(edge, text)
    assert said in error
    assert error.startswith(str(tmp_path / "agent.toml"))


def test_a_removed_key_is_refused_and_the_error_says_what_to_do(edge: Edge, brain: Brain) -> None:
    for read in (edge, brain):
        with pytest.raises(ConfigError, match=r"line 3: audit\.hot was removed: .*delete the line"):
            read("[audit]\ndays = 7\nhot = 1000\n")


def test_a_line_inside_a_text_of_several_lines_is_not_taken_for_a_key(edge: Edge) -> None:
    text = 'summary = """\nlevel = 1\n"""\nlevel = "x"'
    assert "agent.toml, line 4: level: Invalid enum value" in refusal(edge, text)
    assert "line 3" in refusal(edge, '# level = "full"\n\n"level" = "x"')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[broker]\npassword = 'p4ss'", "'password' may not be in this file; set EVOCLAW_EDGE_PA"),
        ("[model]\napi_key = 'p4ss'", "'api_key' may not be in this file; set it in the enviro"),
        ("broker.url = 'mqtt://me:p4ss@localhost'", "may not contain the password"),
        ("broker.url = 'mqtt://me:p4ss@localhost:x'", "broker.url: "),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated_in_the_error(
    edge: Edge, text: str, said: str
) -> None:
    error = refusal(edge, text)
    assert said in error
    assert "p4ss" not in error


def test_the_broker_password_comes_from_the_environment_or_a_file(
    edge: Edge, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    broker = edge('[broker]\nusername = "pi"\npassword_file = "secret"').broker
    assert broker.password_file == secret
    with pytest.raises(ConfigError, match="does not exist"):
        broker_password(broker, {}, "EVOCLAW_EDGE_PASSWORD")
    secret.write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        broker_password(broker, {}, "EVOCLAW_EDGE_PASSWORD")
    secret.write_text(" p4ss \n")
    assert broker_password(broker, {}, "EVOCLAW_EDGE_PASSWORD") == " p4ss "
    env = {"EVOCLAW_EDGE_PASSWORD": "other"}
    assert broker_password(broker, env, "EVOCLAW_EDGE_PASSWORD") == "other"
    assert broker_password(edge("").broker, {}, "EVOCLAW_EDGE_PASSWORD") == ""
    assert "p4ss" not in repr(broker)


@pytest.mark.parametrize(
    "url", ["mqtt://192.168.1.5", "mqtts://broker.example:8883", "mqtt://127.1", "mqtt://[::2]"]
)
def test_a_remote_broker_needs_orchestrator_keys_or_allow_unsigned(edge: Edge, url: str) -> None:
    text = f'[broker]\nurl = "{url}"'
    error = refusal(edge, text)
    assert "line 2" in error
    assert "set orchestrator_keys, or allow_unsigned = true" in error
    assert edge("allow_unsigned = true\n" + text).broker.url == url
    assert edge('orchestrator_keys = ["k"]\n' + text).orchestrator_keys == ("k",)
    assert "set orchestrator_keys" in refusal(edge, "", EVOCLAW_EDGE_BROKER_URL=url)
    both = "allow_unsigned = true\norchestrator_keys = ['k']\n"
    assert "line 1: allow_unsigned = true contradicts" in refusal(edge, both + text)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "[::1]"])
def test_a_loopback_broker_needs_no_orchestrator_keys(edge: Edge, host: str) -> None:
    broker = edge(f'[broker]\nurl = "mqtts://{host}"').broker
    assert (broker.address().port, broker.is_local) == (8883, True)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "url = 'http://localhost'",
            "line 2: broker.url: the broker's address must have the form mqtt",
        ),
        ("url = 'mqtt://'", "must have the form mqtt://"),
        ("url = 'mqtt://localhost:99999'", "must have the form mqtt://"),
        ("url = 'mqtt://[::1'", "must have the form mqtt://"),
        ("ca_file = '/ca.pem'", "starts with mqtt:, not mqtts:"),
        ("url = 'mqtts://localhost'\nkey_file = '/k.pem'", "line 3: broker.key_file needs a cert"),
        ("url = 'mqtt://me@localhost'\nusername = 'you'", "line 2: broker.url: username and url"),
    ],
)
def test_an_invalid_broker_is_refused(edge: Edge, lines: str, said: str) -> None:
    assert said in refusal(edge, f"[broker]\n{lines}")


def test_delivery_settings_alone_do_not_configure_a_broker() -> None:
    assert not BrokerConfig(qos=0, keep_alive_s=5).is_configured
    assert BrokerConfig(url="mqtt://there:1883", qos=0).is_configured
    assert BrokerConfig(username="me").is_configured


def test_read_roots_must_exist_and_default_to_harmless_files(edge: Edge, tmp_path: Path) -> None:
    found = edge("").read_roots
    assert all(str(path) in ("/etc/hostname", "/etc/os-release") for path in found)
    (tmp_path / "logs").mkdir()
    assert edge('read_roots = ["logs"]').read_roots == (tmp_path / "logs",)
    assert edge("read_roots = []").read_roots == ()
    missing = tmp_path / "nowhere"
    error = refusal(edge, f'read_roots = ["{missing}"]')
    assert f"line 1: read_roots: '{missing}' does not exist" in error


def test_the_host_of_the_own_broker_is_a_setting_of_orchestrators_only(
    brain: Brain, edge: Edge
) -> None:
    own = brain('[broker]\nhost = "lan"').broker
    assert (own.host, own.is_configured) == ("lan", False)
    assert "line 2: unknown key 'host' in [broker]" in refusal(edge, '[broker]\nhost = "lan"')
    both = '[broker]\nurl = "mqtt://there"\nhost = "lan"'
    assert "line 3: broker.host is for the broker of `evoclaw up`" in refusal(brain, both)


def test_environment_variables_override_single_values(edge: Edge) -> None:
    config = edge(
        SENSOR,
        EVOCLAW_EDGE_AGENT_ID="other",
        EVOCLAW_EDGE_BROKER_URL="mqtts://localhost:1",
        EVOCLAW_EDGE_LIMITS_CONCURRENCY="8",
        EVOCLAW_EDGE_LEVEL="read_only",
        EVOCLAW_EDGE_ALLOW_UNSIGNED="true",
        EVOCLAW_EDGE_WORKSPACE="work",
        EVOCLAW_EDGE_MODEL_NAME="ollama/x",
        EVOCLAW_EDGE_SUMMARY="",
        EVOCLAW_HOME="/data",
    )
    assert config.agent_id == "other"
    assert (config.broker.url, config.limits.concurrency) == ("mqtts://localhost:1", 8)
    assert (config.level, config.allow_unsigned) == (Level.READ_ONLY, True)
    assert config.workspace == Path.cwd() / "work"
    assert config.model.name == "ollama/x"
    assert config.summary.startswith("Pi sensor")
    assert config.data == Path("/data/edge/other")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("EVOCLAW_EDGE_AGENT_ID", "a/b", "agent_id: 'a/b' is not a valid id"),
        ("EVOCLAW_EDGE_LIMITS_QUEUE", "many", "Expected `int`"),
        ("EVOCLAW_EDGE_LEVEL", "none", "allowed: read_only, supervised, full"),
        ("EVOCLAW_EDGE_TOOLS_TIMEOUT_MS", "null", "Expected `int"),
        ("EVOCLAW_EDGE_WORKSPACE", "~root", "another user"),
        ("EVOCLAW_HOME", "~root", "another user"),
    ],
)
def test_an_invalid_environment_variable_is_named(
    edge: Edge, variable: str, value: str, said: str
) -> None:
    error = refusal(edge, "", **{variable: value})
    assert error.startswith(f"{variable}: ")
    assert said in error


def test_an_edge_needs_no_configuration_file() -> None:
    config = read_agent_toml(None, HOME | {"EVOCLAW_EDGE_AGENT_ID": "a"})
    assert (config.agent_id, config.data) == ("a", Path("/home/pi/.evoclaw/edge/a"))
    assert default_data_folder(HOME) == Path("/home/pi/.evoclaw")


def test_accepted_commands_can_be_limited_by_orchestrator_key(edge: Edge) -> None:
    everything = edge("")
    assert everything.accepted == frozenset(COMMANDS)
    few = edge('commands = ["tool", "ping"]')
    assert few.accepted == {"tool", "ping"}
    assert few.senders == {}
    table = "orchestrator_keys = ['k', 'l']\n[commands]\nprompt = false\nshutdown = ['k']"
    some = edge(table)
    assert some.senders == {"shutdown": ("k",)}
    assert some.accepted == frozenset(COMMANDS) - {"prompt"}


def test_an_edge_accepts_models_of_the_catalogue_unless_it_is_set_otherwise(edge: Edge) -> None:
    assert edge("").accept_models == ("catalogue",)
    assert edge("accept_models = []").accept_models == ()
    given = ("catalogue", f"sha256:{'0' * 64}", "*")
    assert edge(f"accept_models = {[*given]}").accept_models == given


def test_a_missing_or_unreadable_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    with pytest.raises(ConfigError, match="does not exist"):
        read_agent_toml(path, {})
    with pytest.raises(ConfigError, match="does not exist"):
        read_agent_toml(tmp_path, {})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="does not exist"):
        read_agent_toml(tmp_path / "pipe", {})
    path.write_bytes(b"\xef\xbb\xbfagent_id = 'a'\r\n")
    assert read_agent_toml(path, HOME).agent_id == "a"
    path.write_bytes(b"# fine\n# \xff")
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        read_agent_toml(path, {})
    path.write_bytes(b"#" * (256 * 1024 + 1))
    with pytest.raises(ConfigError, match="more than 256 KB"):
        read_agent_toml(path, {})


BOMBS = {
    "arrays": "a = " + "[" * 120_000,
    "inline tables": "a = " + "{a=" * 60_000,
    "digits": "a = " + "1" * 200_000,
    "dotted key": "a" + ".a" * 120_000 + " = 1",
    "spaced key": "a" + " . 'a'" * 40_000 + " = 1",
    "escaped key": "a" + '."\\""' * 40_000 + " = 1",
    "dotted head": "[a" + ".a" * 120_000 + "]",
    "dotted key inside": "a = {a" + ".a" * 120_000 + " = 1}",
    "one word": "a" * 250_000,
    "one quote": "'" * 250_000,
    "blanks": " " * 250_000 + "=",
    "heads": "".join(f"[a{n}]\n" for n in range(25_000)),
}


@pytest.mark.process
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_hostile_file_is_refused_within_memory_and_time_limits(tmp_path: Path, bomb: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(BOMBS[bomb])
    code = (
        "import sys; from pathlib import Path; from evoclaw.config import read_agent_toml\n"
        "from evoclaw.core.errors import ConfigError\n"
        "try: read_agent_toml(Path(sys.argv[1]), {})\n"
        "except ConfigError as error: print('refused:', error)\n"
    )

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True, text=True, timeout=60, preexec_fn=bound,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.startswith(f"refused: {path}")
    assert len(done.stdout) < 1000


def test_many_dotted_words_in_a_string_are_not_a_long_key(edge: Edge) -> None:
    text = ". ".join(["Word"] * 31) + ", and " + ". ".join(["word"] * 31)
    assert edge(f"summary = '{text}'").summary == text


def test_a_written_file_is_commented_private_and_loads_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "agent.toml"
    values = {
        "agent_id": "pi",
        "summary": 'A "quoted" one — with ü',
        "capabilities": frozenset({"shell", "file_read"}),
        "level": Level.SUPERVISED,
        "workspace": tmp_path / "work",
        "orchestrator_keys": ("k1", "k2"),
        "commands": {"shutdown": ["k1"], "prompt": False},
        "broker": {"url": "mqtts://broker.example", "username": "pi", "keep_alive_s": 5},
        "tools": {"timeout_ms": None, "only": ["read"], "paths": {"bin": "/opt/bin"}},
    }
    write_agent_toml(path, values)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().startswith(
        "# Settings of this EvoClaw edge.\n\n"
        "# The id of this edge on the broker, unique for each machine.\n"
        'agent_id = "pi"\n'
    )
    config = read_agent_toml(path, HOME)
    assert (config.agent_id, config.summary) == ("pi", values["summary"])
    assert (config.level, config.workspace) == (Level.SUPERVISED, tmp_path / "work")
    assert config.capabilities == {"shell", "file_read"}
    assert config.commands == {"shutdown": ("k1",), "prompt": False}
    assert (config.broker.username, config.broker.keep_alive_s) == ("pi", 5)
    assert (config.tools.only, config.tools.paths.bin) == (("read",), Path("/opt/bin"))


def test_values_that_would_not_load_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    for wrong in (
        {"agent_id": "a b"},
        {"agnet_id": "a"},
        {"broker": {"password": "p"}},
        {"broker": {"url": "mqtt://elsewhere"}},
        {"summary": "\ud800"},
        {"level": 3},
    ):
        with pytest.raises(ConfigError):
            write_agent_toml(path, wrong)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    write_agent_toml(path, {"agent_id": "a"})
    with pytest.raises(ConfigError, match="already exists"):
        write_agent_toml(path, {"agent_id": "b"})
    assert read_agent_toml(path, HOME).agent_id == "a"
    write_agent_toml(path, {"agent_id": "b"}, replace=True)
    assert read_agent_toml(path, HOME).agent_id == "b"
    assert [one.name for one in tmp_path.iterdir()] == ["agent.toml"]
    with pytest.raises(ConfigError, match="cannot write"):
        write_agent_toml(path / "below", {"agent_id": "b"})


@pytest.mark.process
def test_a_full_disk_leaves_the_old_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    write_agent_toml(path, {"agent_id": "a"})
    code = (
        "import resource, sys; from pathlib import Path; from evoclaw.config import *\n"
        "from evoclaw.core.errors import ConfigError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))\n"
        "try: write_agent_toml(Path(sys.argv[1]), {'agent_id': 'b'}, replace=True)\n"
        "except ConfigError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(f"cannot write {path}: File too large; ")
    assert [one.name for one in tmp_path.iterdir()] == ["agent.toml"]
    assert read_agent_toml(path, HOME).agent_id == "a"


def test_the_broker_address_has_the_configured_user_and_certificates(edge: Edge) -> None:
    broker = edge(
        """
        [broker]
        url = "mqtts://localhost"
        username = "pi"
        ca_file = "ca.pem"
        cert_file = "~/pi.pem"
        key_file = "/etc/pi.key"
        """
    ).broker
    address = broker.address("p4ss")
    assert (address.host, address.port, address.username) == ("localhost", 8883, "pi")
    assert address.password == "p4ss"
    assert address.tls is not None
    assert (address.tls.cert_file, address.tls.key_file) == ("/home/pi/pi.pem", "/etc/pi.key")
    assert str(address.tls.ca_file).endswith("/ca.pem")
    assert Path(str(address.tls.ca_file)).is_absolute()
    with pytest.raises(ConfigError, match="a password needs a username"):
        edge("").broker.address("p4ss")


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100)


@given(TEXTS, st.lists(TEXTS, max_size=4), TEXTS)
@example(name="".join(map(chr, range(200))), tools=["\"'\\"], key="\u2028\x85\x7f\U0001f980")
def test_any_text_round_trips_through_the_file(
    tmp_path_factory: pytest.TempPathFactory, name: str, tools: list[str], key: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "hypothesis" / "agent.toml"
    values = {
        "agent_id": "a",
        "orchestrator_keys": [key],
        "broker": {"username": name},
        "tools": {"only": tools},
    }
    write_agent_toml(path, values, replace=True)
    config = read_agent_toml(path, HOME)
    assert config.broker.username == name
    assert config.tools.only == tuple(tools)
    assert config.orchestrator_keys == (key,)
    assert tomllib.loads(path.read_bytes().decode())["broker"]["username"] == name


@given(st.text(max_size=300))
def test_any_text_is_loaded_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(text.encode(errors="replace"))
    try:
        config = read_agent_toml(path, HOME)
    except ConfigError as error:
        assert str(error).startswith(str(path))
    else:
        assert is_agent_id(config.agent_id)


def test_a_reload_names_the_keys_of_tools_that_need_a_restart(tmp_path: Path) -> None:
    env = {"EVOCLAW_HOME": str(tmp_path)}
    before = read_evoclaw_toml(None, env)
    file = tmp_path / "evoclaw.toml"
    file.write_text(
        '[orchestrator]\ntool_error_limit = 5\n[orchestrator.tools]\nskills_path = "elsewhere"\n'
        'permissions = ["network"]\n[[mcp]]\nname = "far"\nurl = "https://example.org"\n'
    )
    reloaded = before.reloaded(read_evoclaw_toml(file, env))
    assert reloaded.changed == ("orchestrator", "mcp")
    assert reloaded.needs_restart == ("orchestrator.tools",)
    tools = reloaded.config.orchestrator.tools
    assert tools.skills_path == before.orchestrator.tools.skills_path
    assert tools.granted == {"network"}


def test_the_first_hosts_of_commands_need_a_restart_and_other_ports_do_not(tmp_path: Path) -> None:
    env, file = {"EVOCLAW_HOME": str(tmp_path)}, tmp_path / "evoclaw.toml"
    before = read_evoclaw_toml(None, env)
    file.write_text('[network]\ncommands = ["example.org"]\nports = [8443]\n')
    with_hosts = read_evoclaw_toml(file, env)

    reloaded = before.reloaded(with_hosts)
    assert reloaded.needs_restart == ("network.commands",)
    assert reloaded.changed == ("network",)
    assert reloaded.config.network.commands == ()
    assert reloaded.config.reloaded(with_hosts).needs_restart == ("network.commands",)

    file.write_text('[network]\ncommands = ["example.org", "example.com"]\nports = [443]\n')
    more = with_hosts.reloaded(read_evoclaw_toml(file, env))
    assert more.needs_restart == ()
    assert more.config.network.ports == (443,)
    assert more.config.network.commands == ("example.org", "example.com")
