"""`evoclaw.toml`: what each key changes in the runtime of `evoclaw up` and in `evoclaw run`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jwt as jwt_library
from msgspec.structs import fields, replace

from evoclaw.core.errors import ToolFailure
from evoclaw.core.events import TurnStarted
from evoclaw.core.labels import Label, Principal
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import ErrorKind, user
from evoclaw.core.ports import Policy, Ports
from evoclaw.core.state import new_run
from evoclaw.core.tools import Tool
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.budget.settings import AccountLimits, BudgetSettings
from evoclaw.governance.flow.policy import Flow
from evoclaw.governance.permissions import Permissions
from evoclaw.observe.audit.sink import AuditContext
from evoclaw.orchestrator.agents.definitions import budget_of, check_inputs, level_of
from evoclaw.orchestrator.channels.webhooks import WebhookChannel
from evoclaw.orchestrator.fleet.edge_routes import session_routes
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.databases.blob_cipher import SEALED_PREFIX
from evoclaw.tools.define import tool as define
from evoclaw.wiring import store
from evoclaw.wiring.before_images import open_before_images
from evoclaw.wiring.evaluation import case_folder
from evoclaw.wiring.fleet import find_broker, open_fleet
from evoclaw.wiring.http import access_for
from evoclaw.wiring.record_key import record_cipher
from evoclaw.wiring.runtime import Runtime
from tests.settings.chat_rows import CHAT_ROWS
from tests.settings.evolution_rows import EVOLUTION_ROWS
from tests.settings.notify_rows import NOTIFY_ROWS
from tests.settings.rows import (
    EXTENSIONS,
    FILES,
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
from tests.settings.server_rows import SERVER_ROWS

AGENT = '[[agents]]\nid = "one"\ncapabilities = ["*"]\n'
BROKER = '[broker]\nurl = "mqtt://127.0.0.1:1"\n'
CHANNEL = '[[channels]]\nname = "hook"\nkind = "webhook"\nsenders = ["*"]\n'
WEBHOOK = f'{CHANNEL}[channels.webhook]\nsecret_env = "SECRET"\n'
MCP = '[[mcp]]\nname = "one"\ncommand = ["/nonexistent"]\n'
TOKEN = '[[server.tokens]]\nfile = "FOLDER/token"\nname = "robot"\nscopes = ["agents:invoke"]\n'
JWT = (
    '[server.jwt]\nissuer = "i"\naudience = "a"\nsecret_file = "FOLDER/token"\n'
    'algorithms = ["HS256"]\ntenant = "local"\n'
)
SEAT = "tests/seat/test_settings.py"
UNDO = "tests/cli/test_undo.py"
EVALUATION = "tests/seat/test_evaluation.py::cases"


async def _case_folder(here: Built) -> str:
    return case_folder(here.env).folder.name


def runtime(look: Callable[[Runtime], Any]) -> Observe:
    """Look at the runtime of `evoclaw up`."""

    async def observe(here: Built) -> Any:
        found = look(await here.service())
        return await found if hasattr(found, "__await__") else found

    return observe


def held(*path: str) -> Observe:
    """The value that a part of the runtime holds: a path of attributes."""

    async def observe(here: Built) -> Any:
        return inside(await here.service(), *path)

    return observe


def offered(made: Runtime) -> list[Tool]:
    """The tools of the default agent."""
    return sorted(made.run_factory.tools(made.default_agent), key=lambda found: found.name)


def names(made: Runtime) -> list[str]:
    """Their names."""
    return [found.name for found in offered(made)]


def prompt(made: Runtime) -> str:
    """The system prompt of the first agent."""
    return inside(made.conversations, "_prompt")(made.default_agent)


def agent(line: str, look: Callable[[Runtime], Any], base: str = AGENT, shown: str = "") -> Row:
    """A key of an agent."""
    return Row(f"{base}{line}\n", runtime(look), base, shown)


async def turns_of(made: Runtime, *, again: bool) -> int:
    """Turns of a run whose calls all fail, or are always the same."""

    @define("file_read", effect="read")
    async def probe(number: int) -> str:
        """Look, or fail."""
        if again:
            return "the same"
        raise ToolFailure(ErrorKind.NOT_FOUND, "not there")

    replies = [calls(("probe", {"number": 1 if again else number})) for number in range(30)]
    executor = LocalExecutor([probe])
    ports = Ports(Scripted(*replies, says("done")), executor, Permissions(frozenset({"*"})))
    settings = replace(made.default_agent.settings, max_turns=20)
    run = run_loop(new_run((user("look"),), "r"), ports, settings)
    return len([event async for event in run if isinstance(event, TurnStarted)])


def policies(made: Runtime) -> tuple[Policy, ...]:
    """The policies of the default agent."""
    return made.run_factory.policies(made.default_agent)


def verdicts(toml: str, *calls: Any, base: str = "") -> Row:
    """A key by which the policies of the service judge these calls in another way."""
    full = '[[agents]]\nid = "one"\ncapabilities = ["*"]\nautonomy = "full"\n'
    observe = runtime(lambda made: judged(policies(made), *calls))
    return Row(full + toml, observe, full + base)


def policy_settings(kind: type[Policy]) -> Callable[[str], Observe]:
    """The value of a key that a policy of the service holds."""

    def key(name: str) -> Observe:
        def look(made: Runtime) -> Any:
            policy = next(found for found in policies(made) if isinstance(found, kind))
            return getattr(cast("Any", policy)._settings, name)

        return runtime(look)

    return key


def database(here: Built) -> dict[str, Any]:
    """Where the store is."""
    return inside(store, "_database_location")(here.env)


def address(here: Built) -> Any:
    """The broker that the orchestrator connects to."""
    found = find_broker(here.folder, here.env)
    return found.host, found.port, found.username, found.password, _relative(found.tls, here)


def _relative(value: object, here: Built) -> str:
    return repr(value).replace(str(here.folder), "")


async def checkpoints(made: Runtime) -> int:
    """Up to which of ten records a checkpoint is signed."""
    audit = made.governance.audit
    assert audit is not None
    for _ in range(10):
        audit.record("probe", AuditContext(principal=Principal(), agent_id="one"))
        await asyncio.to_thread(audit.flush)
    last = await asyncio.to_thread(audit.warm.last_checkpoint)
    return 0 if last is None else last.seq


def jwt_caller(claims: dict[str, Any]) -> Observe:
    """Who a JWT with these claims acts for, that expired ten seconds ago."""

    async def observe(here: Built) -> Any:
        made = await here.service()
        about = {"iss": "i", "aud": "a", "sub": "ada", "scope": "tools:read", "tenant": "local"}
        signed = jwt_library.encode(
            {**about, "exp": time.time() - 10, **claims}, FILES["token"], algorithm="HS256"
        )
        return repr(
            await access_for(made.stores.database, made.settings.server).authenticate(signed)
        )

    return observe


def deletes_sessions(made: Runtime) -> bool:
    """Whether a task deletes old sessions."""
    return any("_keep_deleting" in repr(task.get_coro()) for task in asyncio.all_tasks())


def routes(made: Runtime) -> list[str]:
    """The kinds of executors that the calls of the default agent may go to."""
    found = session_routes(made.orchestrator, made.default_agent, "s")
    return [type(route.executor).__name__ for route in found]


async def link(here: Built) -> Any:
    """The connection to the broker, and whether receipts are required."""
    orchestrator = await here.stack.enter_async_context(open_fleet(here.env))
    made = inside(orchestrator.requests, "_link")
    verifier: Any = orchestrator.report_receiver.receipts
    return made._keep_alive, made._qos, verifier._required


async def tokens(here: Built) -> Any:
    """Who a request with the configured token acts for."""
    made = await here.service()
    access = access_for(made.stores.database, made.settings.server)
    caller = await access.authenticate(FILES["token"])
    return repr(caller)


async def undo_limits(here: Built) -> Any:
    """How long, and up to which size, what `evoclaw run` changes is kept."""
    async with open_before_images(here.env) as images:
        return None if images is None else (images.retention_s, images.max_file_bytes)


async def rates_folder(here: Built) -> Any:
    """Whether a count is left for other processes."""
    made = await here.service()
    await judged(policies(made), call(tool()))
    return await asyncio.to_thread((here.folder / "rates").exists)


async def users(here: Built) -> Any:
    """Calls of two users."""
    made = await here.service()
    calls = [call(tool(), number=n, principal=Principal(user=f"u{n}")) for n in range(3)]
    return await judged(policies(made), *calls)


def webhook(line: str, shown: str = "") -> Row:
    """A key of a webhook."""

    def look(made: Runtime) -> Any:
        channel = next(found for found in made.channels if isinstance(found, WebhookChannel))
        return repr(inside(channel, "settings")), repr(inside(channel, "_signatures", "__dict__"))

    return Row(f"{WEBHOOK}{line}\n", runtime(look), WEBHOOK, shown)


def _webhook_rows() -> Rows:
    values = {
        "signature_header": '"x-sig"', "timestamp_header": '"x-time"', "window_s": "7",
        "text": '"/t"', "sender": '"/s"', "conversation": '"/c"', "message_id": '"/m"',
        "callback_url": '"https://b.test/"', "allow": '["10.0.0.1"]',
    }  # fmt: skip
    text = WEBHOOK + table("", values).partition("\n")[2]

    def field(key: str) -> Callable[[Runtime], Any]:
        def look(made: Runtime) -> Any:
            channel = next(found for found in made.channels if isinstance(found, WebhookChannel))
            return inside(channel, "settings", "webhook", key)

        return look

    return {
        f"channels.webhook.{key}": Row(text, runtime(field(key)), WEBHOOK, "") for key in values
    }


def channel(base: str, changed: str, shown: str = "") -> Row:
    """A key of a channel."""
    return Row(
        changed,
        runtime(lambda made: [repr(inside(c, "settings")) for c in made.channels]),
        base,
        shown,
    )


def mcp(line: str, key: str) -> Row:
    """A key of an MCP server."""

    def look(made: Runtime) -> Any:
        return [getattr(found.server, key) for found in made.run_factory.toolbox.mcp_servers]

    return Row(MCP + line, runtime(look), MCP, "tests/executors")


def jwt(line: str) -> Row:
    """A key of the JWT verifier."""

    def look(made: Runtime) -> Any:
        access = access_for(made.stores.database, made.settings.server)
        verifier = inside(access, "_external")
        return repr(verifier._settings).replace(str(made.home), ""), sorted(verifier._keys)

    return Row(f"{JWT}{line}\n", runtime(look), JWT, "tests/orchestrator/test_access.py")


def _jwt_rows() -> Rows:
    values = {
        "leeway_s": "5", "tenant_claim": '"org"', "user_claim": '"mail"',
        "scopes_claim": '"rights"', "scopes": '{ "tools:read" = ["skills:read"] }',
    }  # fmt: skip
    claims = {"org": "acme", "mail": "a@b", "rights": "skills:read"}
    base = JWT.replace('tenant = "local"\n', "")
    return {
        f"server.jwt.{key}": Row(f"{base}{key} = {value}\n", jwt_caller(claims), base)
        for key, value in values.items()
    }


_WRITE = tool("write", "file_write")
_UNTRUSTED = Label(untrusted=True, sources=("webfetch",))
_BASH = tool("bash", "shell")
_FETCH = call(tool("webfetch", "network"), {"url": "http://b.test/"})
_LS = call(_BASH, {"command": "ls"})
_TWO = [call(tool(), number=number) for number in (1, 2)]
_BUDGET = "tests/governance/budget"
_ACTION = '[budget.actions.relay]\ntools = ["device"]\nmost = 3\n'


def _budget_rows() -> Rows:
    held_by = ("conversations", "limits", "budget")
    values = {
        "turns": "7", "minutes": "7.5", "calls": "7", "files": "7", "lines": "7", "bytes": "7",
        "tokens": "7", "dollars": "7.5", "warn_at": "0.5", "ask_at": "0.97",
        "unattended": '"refuse"', "unpriced": '"allow"',
    }  # fmt: skip
    rows: dict[str, Row | Refused | Elsewhere] = {**_held_rows("budget", held_by, values, _BUDGET)}
    rows |= _held_rows("budget", held_by, {"tell_at": "0.3"}, "")
    actions = {
        "tools": '["other"]', "arguments": "{ on = true }", "most": "9", "per": '"7d"',
        "times": '"count"',
    }  # fmt: skip
    for key in actions:

        def action(made: Runtime, key: str = key) -> Any:
            return getattr(made.conversations.limits.budget.actions["relay"], key)

        text = table("budget.actions.relay", actions)
        rows[f"budget.actions.{key}"] = Row(text, runtime(action), _ACTION, _BUDGET)
    places = {"read": '["x"]', "write": '["x"]', "domains": '["x"]'}
    rows |= _held_rows("budget.allowed", (*held_by, "allowed"), places, _BUDGET)
    limits = {one.name: '"1h"' if one.name == "per" else "7" for one in fields(AccountLimits)}
    for account in ("tenant", "user", "agent"):
        shown = _BUDGET
        rows |= _held_rows(f"budget.{account}", (*held_by, account), limits, shown)
    del limits["per"]
    for key in limits:

        def smaller(made: Runtime, key: str = key) -> Any:
            return getattr(budget_of(made.default_agent, BudgetSettings()), key)

        rows[f"agents.budget.{key}"] = agent(table("agents.budget", limits), smaller)
    return rows


def _prompt_rows() -> Rows:
    lines = {
        "name": 'name = "Uno"', "description": 'description = "Counts."',
        "prompt": 'prompt = "Be brief."', "constraints": 'constraints = ["Never shout."]',
        "spec_capabilities": 'spec_capabilities = ["counting"]', "owner": 'owner = "Ada"',
        "inputs.description": 'inputs.x = { description = "How many." }',
    }  # fmt: skip
    words = {key: line.split('"')[1] for key, line in lines.items()}
    text = "\n".join(lines.values())
    untrusted = agent(
        'system_messages = "untrusted"',
        lambda made: made.default_agent.trusts_system_messages,
        shown="tests/api/test_openai_client.py::trusts_system_messages",
    )
    return {
        f"agents.{key}": agent(text, lambda made, word=word: word in prompt(made))
        for key, word in words.items()
    } | {"agents.system_messages": untrusted}


def _limit_rows() -> Rows:
    values = {
        "max_turns": "4", "max_seconds": "9.5", "max_call_seconds": "7.5",
        "max_calls_per_turn": "2", "max_parallel": "2", "tool_error_limit": "9",
        "repeat_limit": "9", "max_result_chars": "5000", "temperature": "0.5", "max_tokens": "77",
    }  # fmt: skip
    rows: dict[str, Row | Refused | Elsewhere] = {
        f"agents.limits.{key}": agent(
            table("agents.limits", values),
            lambda made, key=key: getattr(made.default_agent.settings, key),
            shown="tests",
        )
        for key in values
    }
    for key, again in (("tool_error_limit", False), ("repeat_limit", True)):
        rows[f"agents.limits.{key}"] = agent(
            f"[agents.limits]\n{key} = 9", lambda made, again=again: turns_of(made, again=again)
        )
    return rows


def _sandbox_rows() -> Rows:
    text = table("sandbox", SANDBOX_VALUES)
    return {f"sandbox.{key}": Row(text, sandbox_of(Built.toolbox, key)) for key in SANDBOX_VALUES}


def _held_rows(name: str, holder: Sequence[str], values: Mapping[str, str], shown: str) -> Rows:
    text = table(name, values)
    return {f"{name}.{key}": Row(text, held(*holder, key), shown=shown) for key in values}


def _flow_rows() -> Rows:
    flags = {
        "outside": "outside", "private": "private", "acts": "acts", "sends": "sends",
        "harmless": "acts",
    }  # fmt: skip
    rows: dict[str, Row | Refused | Elsewhere] = {
        f"flow.{key}": Row(
            f'[flow]\n{key} = ["todo*"]\n',
            runtime(lambda made, flag=flag: [getattr(one, flag) for one in offered(made)]),
        )
        for key, flag in flags.items()
    }
    outside = '[flow]\noutside = ["todo*"]\n'
    rows["flow.trusted"] = Row(
        f'{outside}trusted = ["todo*"]\n',
        runtime(lambda made: [one.outside for one in offered(made)]),
        outside,
    )
    rows["flow.preset"] = verdicts('[flow]\npreset = "off"\n', call(_WRITE, label=_UNTRUSTED))
    flow = policy_settings(Flow)
    rows["flow.prose"] = Row('[flow]\nprose = ["x"]\n', flow("prose"))
    rows["flow.words"] = Row(
        '[flow.words]\nsend = ["settle"]\n',
        flow("words"),
        shown="tests/governance/flow",
    )
    rows["flow.edge"] = Elsewhere(f"{SEAT}::test_the_edge_of_up_takes_the_rules_of_this_machine")
    return rows


SERVICE_ROWS: Rows = {
    **{
        f"home_assistant.{key}": Elsewhere(
            "tests/seat/test_home_assistant.py::"
            "test_home_assistant_sees_edges_presses_buttons_and_talks_to_agents"
        )
        for key in ("discovery", "prefix", "account")
    },
    "orchestrator.tool_loop_enabled": Row(
        "[orchestrator]\ntool_loop_enabled = false\n", runtime(names)
    ),
    "orchestrator.max_tool_iterations": Row(
        "[orchestrator]\nmax_tool_iterations = 4\n",
        held("default_agent", "settings", "max_turns"),
        shown="tests/core/test_loop.py::max_turns",
    ),
    "orchestrator.tool_error_limit": Row(
        "[orchestrator]\ntool_error_limit = 7\n",
        runtime(lambda made: turns_of(made, again=False)),
    ),
    "orchestrator.max_retries": Elsewhere(EXTENSIONS),
    "orchestrator.calls_in_text": Row(
        '[orchestrator]\ncheaper_models = ["ollama/small"]\ncalls_in_text = false\n',
        runtime(
            lambda made: [
                type(inside(one, "inner")).__name__ for one in made.conversations.of("t").cheaper
            ]
        ),
        '[orchestrator]\ncheaper_models = ["ollama/small"]\n',
        shown="tests/cli/test_run.py::test_calls_in_text_can_be_switched_off",
    ),
    **{
        f"embedded.{key}": Elsewhere(
            "tests/cli/test_embedded_model.py::"
            "test_threads_slots_and_context_tokens_reach_the_server"
        )
        for key in ("threads", "slots", "context_tokens")
    },
    "embedded.idle_s": Elsewhere(
        "tests/cli/test_embedded_model.py::"
        "test_the_server_of_a_service_stops_after_idle_s_and_the_next_run_starts_it_again"
    ),
    "orchestrator.provider_packages": Elsewhere(EXTENSIONS),
    "orchestrator.tools.packages": Elsewhere(EXTENSIONS),
    "orchestrator.tools.workspace_text": Elsewhere(
        "tests/cli/test_workspace_text.py::test_the_setting_decides_how_a_run_reads_agents_md"
    ),
    "orchestrator.cheaper_models": Row(
        '[orchestrator]\ncheaper_models = ["ollama/small"]\n',
        runtime(lambda made: [one.model for one in made.conversations.of("t").cheaper]),
    ),
    "orchestrator.require_receipts": Row(
        f"{BROKER}[orchestrator]\nrequire_receipts = true\n", link, BROKER
    ),
    "orchestrator.evidence": Row(
        "[orchestrator]\nevidence = true\n",
        held("default_agent", "settings", "evidence"),
        shown="tests/core/test_evidence.py",
    ),
    "orchestrator.default_agent": Row(
        f"{AGENT}[orchestrator]\ndefault_agent = false\n",
        runtime(lambda made: list(made.agents)),
        AGENT,
    ),
    "orchestrator.default_tool_timeout_ms": Row(
        "[orchestrator]\ndefault_tool_timeout_ms = 1234\n",
        runtime(lambda made: [one.timeout for one in offered(made)]),
    ),
    "orchestrator.tools.skills_path": Row(
        '[orchestrator.tools]\nskills_path = "shelf"\n',
        runtime(lambda made: made.run_factory.toolbox.skill_registry.skills()),
    ),
    "orchestrator.tools.enable_sandboxing": Row(
        "[orchestrator.tools]\nenable_sandboxing = false\n", sandbox_of(Built.toolbox, "engine")
    ),
    "orchestrator.tools.sandbox_engine": Row(
        '[orchestrator.tools]\nsandbox_engine = "native"\n', sandbox_of(Built.toolbox, "engine")
    ),
    "orchestrator.tools.permissions": Row(
        '[orchestrator.tools]\npermissions = ["git"]\n', runtime(names)
    ),
    "agents.id": Row(AGENT.replace("one", "two"), runtime(lambda made: list(made.agents)), AGENT),
    "agents.model": agent(
        'model = "ollama/other"',
        lambda made: made.providers.get(made.default_agent.model).model,
    ),
    "agents.prompt_file": agent('prompt_file = "prompt.md"', prompt),
    "agents.capabilities": Row(AGENT, runtime(names), '[[agents]]\nid = "one"\n'),
    "agents.autonomy": agent('autonomy = "full"', lambda made: level_of(made.default_agent)),
    "agents.skills": agent(
        'skills = ["tidy"]', prompt, base='[orchestrator.tools]\nskills_path = "shelf"\n' + AGENT
    ),
    "agents.tools": agent('tools = ["todowrite"]', names),
    "agents.on": agent('on = "garage"', routes),
    "agents.budget.per": Refused(f'{AGENT}[agents.budget]\nper = "1h"\n', "'per' is not known"),
    "agents.inputs.type": agent(
        'inputs.x = { type = "integer" }',
        lambda made: check_inputs(made.default_agent, {"x": "text"}),
        base=AGENT + "",
    ),
    "agents.inputs.required": agent(
        "inputs.x = { required = true }", lambda made: check_inputs(made.default_agent, {})
    ),
    "agents.outputs.type": Row(
        f'{AGENT}outputs.x = {{ type = "integer" }}\n',
        runtime(prompt),
        f"{AGENT}outputs.x = {{}}\n",
    ),
    "agents.outputs.description": Row(
        f'{AGENT}outputs.x = {{ description = "How many." }}\n',
        runtime(prompt),
        f"{AGENT}outputs.x = {{}}\n",
    ),
    "agents.outputs.required": Row(
        f"{AGENT}outputs.x = {{ required = true }}\n", runtime(prompt), f"{AGENT}outputs.x = {{}}\n"
    ),
    "agents.dependencies": Row(
        f'{AGENT}dependencies = ["two"]\n[[agents]]\nid = "two"\n',
        runtime(prompt),
        f'{AGENT}[[agents]]\nid = "two"\n',
    ),
    **_prompt_rows(),
    **_limit_rows(),
    "broker.url": Row('[broker]\nurl = "mqtt://127.0.0.1:2"\n', address, BROKER),
    "broker.host": Elsewhere(
        "tests/seat/test_pairing.py::test_the_setting_broker_host_serves_other_machines"
    ),
    "broker.username": Row(f'{BROKER}username = "me"\n', address, BROKER),
    "broker.password_file": Row(
        f'{BROKER}username = "me"\npassword_file = "password"\n',
        lambda here: find_broker(here.folder, here.env).password,
        f'{BROKER}username = "me"\n',
    ),
    "broker.ca_file": Row(f'{BROKER}ca_file = "ca.pem"\n'.replace("mqtt:", "mqtts:"), address,
                          BROKER.replace("mqtt:", "mqtts:")),
    "broker.cert_file": Row(f'{BROKER}cert_file = "c.pem"\n'.replace("mqtt:", "mqtts:"), address,
                            BROKER.replace("mqtt:", "mqtts:")),
    "broker.key_file": Row(
        f'{BROKER}cert_file = "c.pem"\nkey_file = "k.pem"\n'.replace("mqtt:", "mqtts:"), address,
        f'{BROKER}cert_file = "c.pem"\n'.replace("mqtt:", "mqtts:"),
    ),
    "broker.keep_alive_s": Row(f"{BROKER}keep_alive_s = 7\n", link, BROKER),
    "broker.qos": Row(f"{BROKER}qos = 0\n", link, BROKER),
    "mcp.name": Row(MCP.replace("one", "two"), mcp("", "name").observe, MCP),
    "mcp.command": Row(MCP.replace("/nonexistent", "/none"), mcp("", "command").observe, MCP),
    "mcp.url": Row(
        '[[mcp]]\nname = "one"\nurl = "http://127.0.0.1:1/"\n', mcp("", "url").observe, MCP,
        "tests/executors",
    ),
    "mcp.env": mcp('env = { A = "1" }\n', "env"),
    "mcp.headers": Row(
        '[[mcp]]\nname = "one"\nurl = "http://127.0.0.1:1/"\nheaders = { a = "b" }\n',
        mcp("", "headers").observe,
        '[[mcp]]\nname = "one"\nurl = "http://127.0.0.1:1/"\n',
        "tests/executors",
    ),
    "mcp.permissions": mcp('permissions = ["git"]\n', "permissions"),
    "mcp.trust_hints": mcp("trust_hints = true\n", "trust_hints"),
    "policy.rules": verdicts('[policy]\nrules = "rules.toml"\n', _LS),
    "policy.off": verdicts('[policy.off]\nbash = "not here"\n', _LS),
    **_flow_rows(),
    "network.allow": verdicts('[network]\nallow = ["a.test"]\n', _FETCH),
    "network.deny": verdicts('[network]\ndeny = ["b.test"]\n', _FETCH),
    "network.private": Row(
        '[network]\nprivate = ["127.0.0.1"]\n', private_address_of(Built.toolbox)
    ),
    "network.commands": Row(
        '[network]\ncommands = ["a.test"]\n', sandbox_of(Built.toolbox, "proxy")
    ),
    "network.ports": Row(
        '[network]\ncommands = ["localhost"]\nports = [8443]\n', port_answer_of(Built.toolbox),
        '[network]\ncommands = ["localhost"]\n',
    ),
    **_sandbox_rows(),
    "sandbox.devices": Row(
        '[sandbox]\ndevices = ["/dev/null"]\n', sandbox_of(Built.toolbox, "devices")
    ),
    "sandbox.preset": Row(
        '[sandbox]\npreset = "raspberry-pi"\n', sandbox_of(Built.toolbox, "readable")
    ),
    **_held_rows(
        "approvals", ("approvals", "settings"),
        {"nobody": '"deny"', "expires_s": "60", "patience_s": "2.5", "most": "3"},
        "tests",
    ),
    "rates.per_minute": verdicts("[rates]\nper_minute = 1\n", *_TWO),
    "rates.burst": verdicts("[rates]\nburst = 1\n", *_TWO),
    "rates.tools.per_minute": verdicts("[rates.tools.acting]\nper_minute = 1\n", *_TWO),
    "rates.tools.burst": verdicts("[rates.tools.acting]\nburst = 1\n", *_TWO),
    "rates.shared": Row("[rates]\nshared = true\n", rates_folder),
    "rates.most": Row("[rates]\nmost = 1\n", users),
    **_budget_rows(),
    "audit.enabled": Row(
        "[audit]\nenabled = false\n", runtime(lambda made: made.governance.audit is None)
    ),
    **_held_rows(
        "audit", ("governance", "audit", "settings"),
        {
            "days": "3", "cold": '"none"', "cold_token_file": '"/t"',
            "ship_seconds": "5", "spool_bytes": "70000",
            "when_full": '"drop"', "parameter_chars": "20",
        },
        "tests/observe",
    ),
    "audit.checkpoint_every": Row("[audit]\ncheckpoint_every = 2\n", runtime(checkpoints)),
    "store.url": Row(
        '[store]\nurl = "postgresql://me@127.0.0.1:1/x"\n',
        lambda here: str(database(here)["location"]).rpartition("/")[2],
    ),
    "store.schema": Row(
        '[store]\nurl = "postgresql://me@127.0.0.1:1/x"\nschema = "other"\n',
        lambda here: database(here).get("schema"),
        '[store]\nurl = "postgresql://me@127.0.0.1:1/x"\n',
    ),
    "store.password_file": Row(
        '[store]\nurl = "postgresql://me@127.0.0.1:1/x"\npassword_file = "FOLDER/password"\n',
        lambda here: database(here).get("password"),
        '[store]\nurl = "postgresql://me@127.0.0.1:1/x"\n',
    ),
    "store.key_file": Row(
        '[store]\nkey_file = "FOLDER/records.key"\n',
        lambda here: record_cipher(here.env).seal(b"{}").startswith(SEALED_PREFIX),
    ),
    "store.keep_days": Row("[store]\nkeep_days = 3\n", runtime(deletes_sessions)),
    "store.undo_hours": Row("[store]\nundo_hours = 0\n", undo_limits, shown=UNDO),
    "store.undo_bytes": Row("[store]\nundo_bytes = 2048\n", undo_limits, shown=UNDO),
    **SERVER_ROWS,
    "server.tokens.file": Row(TOKEN, tokens),
    "server.tokens.name": Row(TOKEN.replace("robot", "android"), tokens, TOKEN),
    "server.tokens.tenant": Row(f'{TOKEN}tenant = "acme"\n', tokens, TOKEN),
    "server.tokens.user": Row(f'{TOKEN}user = "ada"\n', tokens, TOKEN),
    "server.tokens.scopes": Row(TOKEN.replace("agents:invoke", "tools:read"), tokens, TOKEN),
    "server.jwt.issuer": Row(JWT.replace('"i"', '"j"'), jwt("").observe, JWT),
    "server.jwt.audience": Row(JWT.replace('"a"', '"b"'), jwt("").observe, JWT),
    "server.jwt.algorithms": Row(
        f'{JWT}jwks_file = "FOLDER/jwks.json"\n'.replace('["HS256"]', '["HS256", "EdDSA"]'),
        jwt("").observe,
        f'{JWT}jwks_file = "FOLDER/jwks.json"\n',
    ),
    **_jwt_rows(),
    "server.jwt.jwks_file": jwt('jwks_file = "FOLDER/jwks.json"'),
    "server.jwt.secret_file": Row(JWT.replace("FOLDER/token", "FOLDER/password"),
                                  jwt("").observe, JWT, "tests/orchestrator/test_access.py"),
    "server.jwt.tenant": Row(JWT.replace('"local"', '"acme"'), jwt("").observe, JWT),
    **_held_rows(
        "runs", ("runs", "settings"),
        {
            "at_once": "3", "per_tenant": "2", "queued": "9", "queued_per_tenant": "9",
            "queued_per_session": "9", "slow_watcher": "9", "lease_s": "4.5", "look_s": "0.5",
            "drain_s": "3.5", "keys_kept_s": "60",
        },
        "",
    ),
    "evolution.cases": Row(
        '[evolution]\ncases = "exams"\n', _case_folder, shown=EVALUATION
    ),
    "memory.enabled": Row(
        "[memory]\nenabled = false\n", runtime(lambda made: made.memory is None)
    ),
    **_held_rows(
        "memory", ("memory", "settings"),
        {"top_k": "2", "keep_days": "3.5", "most_chars": "300", "recall_labelled": "true"},
        "",
    ),
    **_held_rows(
        "workflows", ("workflows", "_supervisor", "_settings"),
        {"max_live": "3", "lease_s": "4.5", "poll_s": "0.5"},
        "",
    ),
    "channels.name": channel(WEBHOOK, WEBHOOK.replace('"hook"', '"other"')),
    "channels.kind": Row(
        BROKER + CHANNEL.replace('"webhook"', '"mqtt"'),
        runtime(lambda made: [type(found).__name__ for found in made.channels]),
        WEBHOOK,
    ),
    "channels.tenant": channel(
        WEBHOOK, WEBHOOK.replace("[channels.", 'tenant = "acme"\n[channels.'),
        "",
    ),
    "channels.agent": channel(
        WEBHOOK, WEBHOOK.replace("[channels.", 'agent = "evoclaw"\n[channels.'),
        "",
    ),
    "channels.senders": channel(
        WEBHOOK, WEBHOOK.replace('["*"]', '["ada"]'), ""
    ),
    "channels.patience_s": Row(
        WEBHOOK.replace("[channels.", "patience_s = 7\n[channels."),
        runtime(lambda made: inside(made.channel_dispatcher, "_deliveries")["hook"]._timeout_s),
        WEBHOOK,
        "",
    ),
    "channels.webhook.scheme": webhook('scheme = "github"'),
    "channels.webhook.secret_env": Row(
        WEBHOOK.replace('"SECRET"', '"OTHER"'), webhook("").observe, WEBHOOK
    ),
    "channels.webhook.secret_file": Row(
        WEBHOOK.replace('secret_env = "SECRET"', 'secret_file = "password"'),
        webhook("").observe, WEBHOOK,
    ),
    **_webhook_rows(),
    **CHAT_ROWS,
    **EVOLUTION_ROWS,
    **NOTIFY_ROWS,
    "data": Refused('data = "/elsewhere"\n', "set EVOCLAW_HOME to use another folder"),
}  # fmt: skip
