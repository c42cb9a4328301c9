"""A row for each key of a settings file: what is different once the key is set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, TypeAlias, get_args

import pytest
from msgspec import Struct, structs
from msgspec.structs import fields

from evoclaw.config.toml_document import is_struct
from evoclaw.core.labels import LOCAL_PRINCIPAL, Label, Principal
from evoclaw.core.ports import Allow, Policy
from evoclaw.core.tools import Call, Context, Tool
from evoclaw.edge.edge import Edge
from evoclaw.executors import web_fetch
from evoclaw.executors.url_guard import UrlGuard
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.sandbox.sandboxed_processes import SandboxedProcesses
from evoclaw.transport.memory import MemoryBroker, MemoryLink
from evoclaw.wiring import sandboxes
from evoclaw.wiring.edge import open_edge
from evoclaw.wiring.runtime import Runtime, open_runtime
from evoclaw.wiring.store import open_stores
from evoclaw.wiring.toolbox import Toolbox, open_toolbox
from tests.support.certificates import make_certificates

EXTENSIONS = (
    "tests/seat/test_extensions.py::test_a_service_with_packages_skills_retries_and_safe_input"
)
ROOT = Path(__file__).parent.parent.parent


@dataclass
class Built:
    """What was built from a settings file, for a row to look at."""

    folder: Path
    env: dict[str, str]
    stack: AsyncExitStack
    made: dict[str, Any] = field(default_factory=dict[str, Any])
    """What was built already: rows with the same settings look at the same object."""

    async def service(self) -> Runtime:
        """The runtime of `evoclaw up`, without a broker and without HTTP."""
        return await self._once("service", self._open_service)

    async def toolbox(self) -> Toolbox:
        """The tools of `evoclaw run`, in a workspace of its own."""
        return await self._once("toolbox", self._open_toolbox)

    async def edge(self) -> Edge:
        """The edge of `evoclaw edge`, which is not connected."""
        return await self._once("edge", self._open_edge)

    async def _once(self, name: str, build: Callable[[], Awaitable[Any]]) -> Any:
        if name not in self.made:
            self.made[name] = await build()
        return self.made[name]

    async def _open_service(self) -> Runtime:
        stores = await self.stack.enter_async_context(open_stores(self.env))
        orchestrator = Orchestrator(MemoryLink(MemoryBroker()), stores.commands)
        return await self.stack.enter_async_context(open_runtime(orchestrator, stores, self.env))

    async def _open_toolbox(self) -> Toolbox:
        workspace = self.folder / "ws"
        return await self.stack.enter_async_context(open_toolbox(workspace, self.env))

    async def _open_edge(self) -> Edge:
        path = self.folder / "agent.toml"
        return await self.stack.enter_async_context(open_edge(path, self.env))


Build: TypeAlias = Callable[[Built], Awaitable[object]]
Observe: TypeAlias = Callable[[Built], Any]
"""What is seen of something built; it may be awaited."""


@dataclass(frozen=True)
class Row:
    """A setting, and where its effect is seen."""

    toml: str
    """Settings with another value of the key. Rows with the same settings are one test."""
    observe: Observe
    base: str = ""
    """The settings that these are compared with."""
    shown: str = ""
    """If only the arrival of the value is seen here: the tests that show what it does, as a file
    or folder, with `::` and the name of the key there if it has another one."""


@dataclass(frozen=True)
class Refused:
    """A key that could have no effect: an error says so."""

    toml: str
    text: str


@dataclass(frozen=True)
class Elsewhere:
    """A key whose effect is on a process; this test starts one."""

    test: str
    """`FILE::NAME`."""


Rows: TypeAlias = Mapping[str, Row | Refused | Elsewhere]


def keys_of(shape: type[Struct], prefix: str = "") -> Iterator[str]:
    """The paths of all keys of a settings file, also of those in lists and tables of tables."""
    for one in fields(shape):
        path = f"{prefix}{one.encode_name}"
        inner = _struct_in(one.type)
        if inner is None:
            yield path
        else:
            yield from keys_of(inner, f"{path}.")


def _struct_in(kind: Any) -> type[Struct] | None:
    if is_struct(kind):
        return kind
    return next((found for inner in get_args(kind) if (found := _struct_in(inner))), None)


def _write_files(folder: Path, file: str, text: str) -> None:
    folder.mkdir(mode=0o700)
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o600)
    if ".pem" in text:
        make_certificates(folder)
    (folder / file).write_text(text.replace("FOLDER", str(folder)))


@asynccontextmanager
async def built(folder: Path, file: str, text: str) -> AsyncGenerator[Built]:
    """Write a settings file into an empty folder, with files around it that rows name."""
    await asyncio.to_thread(_write_files, folder, file, text)
    env = {
        "EVOCLAW_HOME": str(folder), "HOME": str(folder), "EVOCLAW_MODEL": "ollama/none",
        "SECRET": "a-secret-of-sixteen", "OTHER": "another-secret-of-16",
        "HOOK_URL": "https://hooks.slack.test/services/three", "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    async with AsyncExitStack() as stack:
        yield Built(folder, env, stack)


async def seen(folder: Path, file: str, text: str, rows: Sequence[Row]) -> list[Any]:
    """What the rows observe with these settings."""
    async with built(folder, file, text) as here:
        found = [row.observe(here) for row in rows]
        return [await one if isawaitable(one) else one for one in found]


def inside(thing: object, *names: str) -> Any:
    """A value inside of something, by its attributes."""
    found: Any = thing
    for name in names:
        found = getattr(found, name)
    return found


async def sandboxed_by(here: Built, build: Build) -> SandboxedProcesses:
    """The sandboxes that were opened while something was built."""
    opened: list[SandboxedProcesses] = here.made.setdefault("sandboxes", [])
    original = sandboxes.open_sandboxes

    async def record(*given: Any, **named: Any) -> SandboxedProcesses:
        opened.append(await original(*given, **named))
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandboxes, "open_sandboxes", record)
        await build(here)
    return opened[-1]


def sandbox_of(build: Build, key: str) -> Observe:
    """The value of a key in the sandbox policy, engine or workers that commands get."""

    async def observe(here: Built) -> Any:
        found = (await sandboxed_by(here, build)).sandboxes
        policy: dict[str, Any] = structs.asdict(inside(found, "_policy"))
        policy["proxy"] = bool(policy["proxy"])
        policy |= {"engine": found.default, "tools": inside(found, "_tools")}
        policy["warm"] = inside(found, "_warm")
        return policy[key]

    return observe


SANDBOX_VALUES = {
    "engine": '"none"', "tools": '{ bash = "none" }', "warm": "false", "memory": "1000000",
    "processes": "7", "file_size": "1000", "open_files": "9", "files": "9", "disk": "1000",
    "max_folders": "9",
    "writable": '["/srv"]', "readable": '["/srv"]',
}  # fmt: skip


def table(name: str, values: Mapping[str, str]) -> str:
    """A table of a settings file."""
    return f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())


def port_answer_of(build: Build) -> Observe:
    """How the egress proxy of commands answers a request for port 8443."""

    async def observe(here: Built) -> str:
        sandboxed = await sandboxed_by(here, build)
        reader, writer = await asyncio.open_unix_connection(inside(sandboxed, "_policy")().proxy)
        writer.write(b"CONNECT localhost:8443 HTTP/1.1\r\nHost: localhost:8443\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer.decode()

    return observe


def private_address_of(build: Build) -> Observe:
    """Why `webfetch` may not reach this machine; empty if it may."""

    async def observe(here: Built) -> str:
        guards: list[UrlGuard] = here.made.setdefault("guards", [])

        class Recorded(web_fetch.WebFetcher):
            def __init__(self, guard: UrlGuard | None = None, **more: Any) -> None:
                super().__init__(guard, **more)
                guards.append(self._guard)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(web_fetch, "WebFetcher", Recorded)
            await build(here)
        return guards[-1].objection(IPv4Address("127.0.0.1"))

    return observe


SKILL = "---\nname: tidy\ndescription: Tidies up.\n---\nSweep the floor first.\n"
RULES = """\
default = "allow"

[[rules]]
name = "no-ls"
then = "deny"
programs = ["ls"]
reason = "ls is not wanted here"
denies = ["ls"]
"""
JWKS = """{"keys": [{
  "kty": "OKP", "crv": "Ed25519", "kid": "k", "alg": "EdDSA",
  "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
}]}"""
FILES = {
    "shelf/tidy/SKILL.md": SKILL,
    "ws/note.txt": "a note",
    "ws/long.txt": "ten chars\n" * 500,
    "prompt.md": "Speak softly.",
    "jwks.json": JWKS,
    "password": "from-a-file-of-thirty-two-bytes-or-more",
    "slack.url": "https://hooks.slack.test/services/one",
    "other.url": "https://hooks.slack.test/services/two",
    "token": "a-token-of-forty-three-characters-or-longer-",
    "rules.toml": RULES,
}


def tool(name: str = "acting", *permissions: str, **flags: Any) -> Tool:
    """A tool to be judged."""
    return Tool(name, "Acts.", {"type": "object"}, frozenset(permissions), **flags)


def call(
    of: Tool,
    arguments: dict[str, Any] | None = None,
    *,
    number: int = 1,
    label: Label | None = None,
    principal: Principal = LOCAL_PRINCIPAL,
) -> Call:
    """A call of it."""
    context = Context(label or Label(), principal=principal)
    return Call(f"c{number}", of, arguments or {}, f"run.1.{number}.1", 5.0, context=context)


async def judged(policies: tuple[Policy, ...], *calls: Call) -> list[str]:
    """The code of the first verdict about each call that is not Allow; empty if all allow it."""
    codes: list[str] = []
    for one in calls:
        verdicts = [await policy.judge(one) for policy in policies]
        codes.append(next((v.code for v in verdicts if not isinstance(v, Allow)), ""))
    return codes
