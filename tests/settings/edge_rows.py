"""`agent.toml`: what each key changes in the edge that `evoclaw edge` runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from msgspec.structs import fields

from evoclaw.config.agent_toml import WITHOUT_EFFECT
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.labels import Label, Principal
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.toolset import Toolset
from evoclaw.edge.edge import Edge
from evoclaw.edge.plans import CallPlan, no_grants
from evoclaw.governance.budget.settings import AccountLimits
from evoclaw.providers.models.catalogue import catalogue
from evoclaw.store.calls.journal import Journal
from evoclaw.transport.wire import Command
from tests.settings.rows import (
    EXTENSIONS,
    SANDBOX_VALUES,
    Built,
    Elsewhere,
    Observe,
    Refused,
    Row,
    Rows,
    call,
    inside,
    judged,
    port_answer_of,
    private_address_of,
    sandbox_of,
    table,
    tool,
)

NAME = 'agent_id = "pi"\ncapabilities = ["*"]\n'
KEY = "A" * 43
CODER_DIGEST = next(entry.sha256 for entry in catalogue() if entry.name == "qwen2.5-coder-0.5b")
BROKER = f'{NAME}[broker]\nurl = "mqtts://127.0.0.1:1"\n'
SEAT = "tests/seat/test_settings.py"
_LS = call(tool("bash", "shell"), {"command": "ls"})
_FETCH = call(tool("webfetch", "network"), {"url": "http://b.test/"})
_TWO = [call(tool(), number=number) for number in (1, 2)]
_UNTRUSTED = Label(untrusted=True, sources=("webfetch",))


def edge(look: Callable[[Edge], Any]) -> Observe:
    """Look at the edge."""

    async def observe(here: Built) -> Any:
        found = look(await here.edge())
        return await found if hasattr(found, "__await__") else found

    return observe


def row(lines: str, look: Callable[[Edge], Any], shown: str = "") -> Row:
    """A key above the first table, or in one."""
    return Row(NAME + lines, edge(look), NAME, shown)


def provider_of(made: Edge) -> Any:
    """The provider of the edge's model."""
    plans: Any = made.parts.planners["prompt"]
    return inside(plans.__self__, "_ports", "provider")


def attempts(made: Edge) -> int:
    """How often the model's server is asked for one reply."""
    return inside(provider_of(made), "inner", "_server", "retry", "attempts")


def names(made: Edge) -> list[str]:
    """The tools that the edge offers."""
    return [found.name for found in made.parts.executor.tools()]


def verdicts(lines: str, *calls: Any, base: str = "") -> Row:
    """A key by which the edge judges these calls in another way."""

    async def look(made: Edge) -> list[str]:
        pipeline = cast("Pipeline", made.parts.executor)
        return await judged((pipeline.policy,), *calls)

    return Row(NAME + lines, edge(look), NAME + base)


def _read(path: str) -> Command:
    return Command("tool", {"tool": "read", "parameters": {"path": path}}, "run.1.1.1")


async def asked(made: Edge, name: str, **parameters: Any) -> list[Any]:
    """The outcome of the same tool call as a command, planned and run twice."""
    found: list[Any] = []
    for number in (1, 2):
        payload = {"tool": name, "parameters": parameters}
        command = Command("tool", payload, f"run.1.{number}.1", run_id="run")
        plan = await made.parts.planners["tool"](command)
        if isinstance(plan, CallPlan):
            plan = await plan.work(Deadline(), lambda text: None)
        found.append((plan.error, plan.text if plan.error else ""))
    return found


def limited(lines: str, name: str, **parameters: Any) -> Row:
    """A key of the budget: the second of two calls is refused."""
    return Row(NAME + lines, edge(lambda made: asked(made, name, **parameters)), NAME)


async def read_note(made: Edge) -> Any:
    """What the tool `read` finds in the workspace."""
    pipeline = cast("Pipeline", made.parts.executor)
    found = Toolset.of(pipeline.tools()).find("read")
    assert found is not None
    return await asked(made, "read", path="note.txt")


async def other_note(here: Built) -> list[Any]:
    """What the tool `read` finds in a folder outside of the workspace."""
    found = await asked(await here.edge(), "read", path=str(here.folder / "ws" / "note.txt"))
    return [error for error, _ in found]


async def long_output(made: Edge) -> int:
    """The characters that are sent of a file of 5,000."""
    plan = await made.parts.planners["tool"](_read("long.txt"))
    assert isinstance(plan, CallPlan)
    return len((await plan.work(Deadline(), lambda text: None)).text)


async def pushed_model(made: Edge) -> str:
    """Whether the edge opens a push of a model that is in its catalogue."""
    receiver = made.parts.model_receiver
    assert receiver is not None
    payload = {"action": "start", "sha256": CODER_DIGEST, "total_bytes": 1}
    try:
        await receiver.answer(Command("model_push", cast("dict[str, Any]", payload), "run.1.1.1"))
    except ToolFailure as refusal:
        return refusal.kind
    finally:
        await receiver.close()
    return "opened"


def audit_of(key: str = "") -> Observe:
    """A setting of the audit that the edge writes; None if it writes none."""

    def look(made: Edge) -> Any:
        plan: Any = made.parts.planners["tool"]
        notes = plan.__self__._notes
        return None if notes is None else key and getattr(notes.audit.settings, key)

    return edge(look)


async def built_or_refused(here: Built) -> str:
    """Whether the edge can be built at all."""
    try:
        await here.edge()
    except ConfigError as problem:
        return str(problem)
    return "built"


async def link(here: Built) -> Any:
    """The connection to the broker."""
    made: Any = (await here.edge()).parts.link
    found = made._address
    tls = repr(found.tls).replace(str(here.folder), "")
    return found.host, found.port, found.username, found.password, tls, made._keep_alive, made._qos


async def users(made: Edge) -> list[str]:
    """Calls of three users."""
    pipeline = cast("Pipeline", made.parts.executor)
    calls = [call(tool(), number=n, principal=Principal(user=f"u{n}")) for n in range(3)]
    return await judged((pipeline.policy,), *calls)


def encrypts(made: Edge) -> bool:
    """Whether the journal is encrypted."""
    return made.parts.journal.database.cipher.seals


async def journal(here: Built) -> bool:
    """Whether the journal is in the folder `d`."""
    made = await here.edge()
    assert isinstance(made.parts.journal, Journal)
    return await asyncio.to_thread((here.folder / "d" / "journal.db").exists)


def _sandbox_rows() -> Rows:
    text = NAME + table("sandbox", SANDBOX_VALUES)
    return {
        f"sandbox.{key}": Row(text, sandbox_of(Built.edge, key), NAME) for key in SANDBOX_VALUES
    }


def _audit_rows() -> Rows:
    values = {
        "days": "3", "cold": '"none"', "cold_token_file": '"/t"',
        "ship_seconds": "5", "spool_bytes": "70000",
        "when_full": '"drop"', "parameter_chars": "20",
    }  # fmt: skip
    text = NAME + table("audit", values)
    return {f"audit.{key}": Row(text, audit_of(key), NAME, "tests/observe") for key in values}


def _flow_rows() -> Rows:
    flags = {
        "outside": "outside", "private": "private", "acts": "acts", "sends": "sends",
        "harmless": "acts",
    }  # fmt: skip
    rows: dict[str, Row | Refused | Elsewhere] = {
        f"flow.{key}": row(
            f'[flow]\n{key} = ["notify", "write"]\n',
            lambda made, flag=flag: [getattr(one, flag) for one in made.parts.executor.tools()],
        )
        for key, flag in flags.items()
    }
    outside = f'{NAME}[flow]\noutside = ["write"]\n'
    rows["flow.trusted"] = Row(
        f'{outside}trusted = ["write"]\n',
        edge(lambda made: [one.outside for one in made.parts.executor.tools()]),
        outside,
    )
    rows["flow.edge"] = verdicts(
        '[flow]\nedge = "strict"\n', call(tool("write", "file_write"), label=_UNTRUSTED)
    )
    return rows


def _budget_rows() -> Rows:
    one_call = '[budget.actions.look]\ntools = ["read"]\nmost = 1\n'
    rows: dict[str, Row | Refused | Elsewhere] = {
        "budget.calls": limited("[budget]\ncalls = 1\n", "read", path="note.txt"),
        "budget.files": limited("[budget]\nfiles = 0\n", "write", path="a", content="a\n"),
        "budget.lines": limited("[budget]\nlines = 1\n", "write", path="a", content="a\nb\n"),
        "budget.bytes": limited("[budget]\nbytes = 1\n", "write", path="a", content="a\nb\n"),
        "budget.actions.tools": limited(one_call, "read", path="note.txt"),
        "budget.actions.most": Row(
            NAME + one_call.replace("most = 1", "most = 9"),
            edge(lambda made: asked(made, "read", path="note.txt")), NAME + one_call,
        ),
        "budget.actions.arguments": Row(
            f'{NAME}{one_call}arguments = {{ path = "other" }}\n',
            edge(lambda made: asked(made, "read", path="note.txt")), NAME + one_call,
        ),
        "budget.actions.per": Row(
            f'{NAME}{one_call}per = "0.000001s"\n',
            edge(lambda made: asked(made, "read", path="note.txt")), NAME + one_call,
        ),
        "budget.actions.times": Row(
            f'{NAME}{one_call.replace("most = 1", "most = 2")}times = "limit"\n',
            edge(lambda made: asked(made, "read", path="note.txt", limit=2)),
            NAME + one_call.replace("most = 1", "most = 2"),
        ),
        "budget.allowed.read": limited('[budget.allowed]\nread = ["x"]\n', "read", path="note.txt"),
        "budget.allowed.write": limited(
            '[budget.allowed]\nwrite = ["x"]\n', "write", path="a", content="a"
        ),
        "budget.allowed.domains": verdicts(
            '[budget.allowed]\ndomains = ["a.test"]\n', _FETCH, base="[budget]\n"
        ),
        "budget.tenant.per": Row(
            f'{NAME}[budget.tenant]\ncalls = 1\nper = "0.000001s"\n',
            edge(lambda made: asked(made, "read", path="note.txt")),
            f"{NAME}[budget.tenant]\ncalls = 1\n",
        ),
    }  # fmt: skip
    for key, value, name in (("calls", 1, "read"), ("files", 0, "write"), ("lines", 1, "write"),
                             ("bytes", 1, "write")):  # fmt: skip
        given = {"path": "note.txt"} if name == "read" else {"path": "a", "content": "a\nb\n"}
        rows[f"budget.tenant.{key}"] = limited(f"[budget.tenant]\n{key} = {value}\n", name, **given)
    return rows


def _refused_rows() -> Rows:
    rows: dict[str, Row | Refused | Elsewhere] = {}
    for path in WITHOUT_EFFECT:
        refused = ".".join(path)
        keys = [f"{refused}.{field.name}" for field in fields(AccountLimits)]
        for key in keys if path[-1] in ("user", "agent") else [refused]:
            above, _, name = key.rpartition(".")
            text = NAME + table(above, {name: _REFUSED_VALUES.get(name, "1")})
            rows[key] = Refused(text, f"{refused} has no effect on an edge")
    return rows


_REFUSED_VALUES = {
    "preset": '"strict"', "prose": '["x"]', "words": '{ a = ["b"] }', "shared": "true",
    "unattended": '"refuse"', "unpriced": '"allow"', "per": '"1h"', "warn_at": "0.5",
}  # fmt: skip


EDGE_TOOLS = "tests/seat/test_edge_tools.py"
_ADDED = "test_an_edge_offers_the_skills_own_tools_and_mcp_servers_of_its_agent_toml"
_PROGRAMS = "test_the_programs_of_tools_paths_bin_run_the_tools_that_their_skill_declares"
_SERVER_KEYS = ("name", "command", "url", "env", "headers", "permissions", "trust_hints")
_OAUTH_KEYS = (
    "grant", "client_id", "client_secret_env", "client_secret_file", "private_key_file",
    "client_metadata_url", "issuer", "scopes", "redirect_port",
)  # fmt: skip
_LOGIN = "tests/cli/test_mcp_login.py::test_a_person_signs_in_for_a_server_of_an_edge"
_TOOL_ROWS: Rows = {
    "tools.paths.bin": Elsewhere(f"{EDGE_TOOLS}::{_PROGRAMS}"),
    "tools.skills_path": Elsewhere(f"{EDGE_TOOLS}::{_ADDED}"),
    "tools.tools_path": Elsewhere(f"{EDGE_TOOLS}::{_ADDED}"),
    "tools.packages": Elsewhere(EXTENSIONS),
    **{f"mcp.{key}": Elsewhere(f"{EDGE_TOOLS}::{_ADDED}") for key in _SERVER_KEYS},
    **{f"mcp.oauth.{key}": Elsewhere(_LOGIN) for key in _OAUTH_KEYS},
}
"""The tools that an `agent.toml` adds to an edge: shown by real processes."""

EDGE_ROWS: Rows = {
    "agent_id": Row('agent_id = "other"\n', edge(lambda made: made.advert.agent_id), NAME),
    "agent_type": row('agent_type = "sensor"\n', lambda made: made.advert.agent_type),
    "summary": row('summary = "A box."\n', lambda made: repr(made.advert)),
    "capabilities": Row('agent_id = "pi"\ncapabilities = ["git"]\n', edge(names), NAME),
    "accept_models": row("accept_models = []\n", pushed_model),
    "level": verdicts('level = "read_only"\n', call(tool("write", "file_write"))),
    "workspace": row('workspace = "ws"\n', read_note),
    "read_roots": Row(
        f'{NAME}read_roots = ["FOLDER/ws"]\n', other_note, f"{NAME}read_roots = []\n"
    ),
    "data": Row(f'{NAME}data = "d"\n', journal, NAME),
    "key_file": row('key_file = "FOLDER/edge.key"\n', encrypts),
    "heartbeat_s": row("heartbeat_s = 7\n", lambda made: made.hello().heartbeat_s),
    "orchestrator_keys": row(
        f'orchestrator_keys = ["{KEY}"]\n', lambda made: made.parts.check is no_grants
    ),
    "allow_unsigned": Row(
        f'{NAME}allow_unsigned = true\n[broker]\nurl = "mqtt://192.0.2.1:1883"\n',
        built_or_refused,
        f'{NAME}[broker]\nurl = "mqtt://192.0.2.1:1883"\n',
    ),
    "commands": Elsewhere(
        f"{SEAT}::test_a_command_is_obeyed_only_when_one_of_its_own_keys_signed_it"
    ),
    "broker.url": Row(BROKER.replace(":1\"", ":2\""), link, BROKER),
    "broker.username": Row(f'{BROKER}username = "me"\n', link, BROKER),
    "broker.password_file": Row(
        f'{BROKER}username = "me"\npassword_file = "password"\n',
        link,
        f'{BROKER}username = "me"\n',
    ),
    "broker.ca_file": Row(f'{BROKER}ca_file = "ca.pem"\n', link, BROKER),
    "broker.cert_file": Row(
        f'{BROKER}cert_file = "client.pem"\nkey_file = "client-key.pem"\n', link, BROKER
    ),
    "broker.key_file": Row(
        f'{BROKER}cert_file = "client.pem"\nkey_file = "client-key.pem"\n', built_or_refused,
        f'{BROKER}cert_file = "client.pem"\n',
    ),
    "broker.keep_alive_s": Row(f"{BROKER}keep_alive_s = 7\n", link, BROKER),
    "broker.qos": Row(f"{BROKER}qos = 0\n", link, BROKER),
    "tools.timeout_ms": row(
        "[tools]\ntimeout_ms = 1234\n",
        lambda made: [one.timeout for one in made.parts.executor.tools()],
    ),
    "tools.sandboxing": Row(
        f'{NAME}[tools]\nsandboxing = "none"\n', sandbox_of(Built.edge, "engine"), NAME
    ),
    "tools.only": row('[tools]\nonly = ["read"]\n', names),
    "limits.concurrency": row(
        "[limits]\nconcurrency = 1\n", lambda made: inside(made, "_concurrency")()
    ),
    "limits.queue": row("[limits]\nqueue = 1\n", lambda made: made.hello().room),
    "limits.output_bytes": Row(
        f'{NAME}workspace = "ws"\n[limits]\noutput_bytes = 2048\n', edge(long_output),
        f'{NAME}workspace = "ws"\n',
    ),
    "limits.artifact_bytes": row(
        "[limits]\nartifact_bytes = 2048\n",
        lambda made: made.parts.artifacts and made.parts.artifacts.max_artifact_bytes,
        "tests/store::max_artifact_bytes",
    ),
    "limits.dedupe_hours": row(
        "[limits]\ndedupe_hours = 2\n",
        lambda made: made.parts.limits.dedupe_retention_s,
        "tests/fleet::dedupe_retention_s",
    ),
    "limits.undo_hours": row("[limits]\nundo_hours = 0\n", names),
    "limits.undo_bytes": row(
        "[limits]\nundo_bytes = 2048\n",
        lambda made: made.parts.images and made.parts.images.max_file_bytes,
        "tests/seat/test_undo.py",
    ),
    "model.max_retries": Row(
        f'{NAME}[model]\nname = "ollama/small"\nmax_retries = 0\n',
        edge(attempts),
        f'{NAME}[model]\nname = "ollama/small"\n',
        shown="tests/seat/test_extensions.py",
    ),
    "model.calls_in_text": Row(
        f'{NAME}[model]\nname = "ollama/small"\ncalls_in_text = false\n',
        edge(lambda made: type(provider_of(made)).__name__),
        f'{NAME}[model]\nname = "ollama/small"\n',
        shown="tests/providers/test_recovered_calls.py::RecoveredCallsProvider",
    ),
    **{
        f"embedded.{key}": Elsewhere(
            "tests/cli/test_embedded_model.py::"
            "test_an_edge_serves_its_model_as_its_own_settings_say"
        )
        for key in ("threads", "slots", "context_tokens", "idle_s")
    },
    "model.name": row('[model]\nname = "ollama/small"\n', lambda made: made.advert.llm),
    "policy.rules": verdicts('[policy]\nrules = "FOLDER/rules.toml"\n', _LS),
    "policy.off": verdicts('[policy.off]\nbash = "not here"\n', _LS),
    **_flow_rows(),
    "network.allow": verdicts('[network]\nallow = ["a.test"]\n', _FETCH),
    "network.deny": verdicts('[network]\ndeny = ["b.test"]\n', _FETCH),
    "network.private": Row(
        f'{NAME}[network]\nprivate = ["127.0.0.1"]\n', private_address_of(Built.edge), NAME
    ),
    "network.commands": Row(
        f'{NAME}[network]\ncommands = ["a.test"]\n', sandbox_of(Built.edge, "proxy"), NAME
    ),
    "network.ports": Row(
        f'{NAME}[network]\ncommands = ["localhost"]\nports = [8443]\n', port_answer_of(Built.edge),
        f'{NAME}[network]\ncommands = ["localhost"]\n',
    ),
    **_sandbox_rows(),
    "sandbox.devices": Row(
        f'{NAME}[sandbox]\ndevices = ["/dev/null"]\n', sandbox_of(Built.edge, "devices"), NAME
    ),
    "sandbox.preset": Row(
        f'{NAME}[sandbox]\npreset = "raspberry-pi"\n', sandbox_of(Built.edge, "readable"), NAME
    ),
    "audit.enabled": Row(f"{NAME}[audit]\nenabled = false\n", audit_of(), NAME),
    "audit.checkpoint_every": Row(
        f"{NAME}[audit]\ncheckpoint_every = 2\n", audit_of("checkpoint_every"), NAME
    ),
    **_audit_rows(),
    "rates.per_minute": verdicts("[rates]\nper_minute = 1\n", *_TWO),
    "rates.burst": verdicts("[rates]\nburst = 1\n", *_TWO),
    "rates.tools.per_minute": verdicts("[rates.tools.acting]\nper_minute = 1\n", *_TWO),
    "rates.tools.burst": verdicts("[rates.tools.acting]\nburst = 1\n", *_TWO),
    "rates.most": Row(
        f"{NAME}[rates]\nper_minute = 9\nmost = 1\n", edge(users),
        f"{NAME}[rates]\nper_minute = 9\n",
    ),
    **_budget_rows(),
    **_refused_rows(),
    **_TOOL_ROWS,
}  # fmt: skip
