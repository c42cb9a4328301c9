"""A broker that rewrites, replays, reorders and drops messages: it may delay, but never widen."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.encoding import decode_base64url
from evoclaw.core.labels import Label, Principal
from evoclaw.core.messages import JSON, ErrorKind, is_object
from evoclaw.core.ports import ALLOW, Policy, Verdict
from evoclaw.core.tools import Call, Context
from evoclaw.edge.device import OrchestratorClock
from evoclaw.edge.grant_check import SignedGrantCheck
from evoclaw.orchestrator.fleet.grant_signer import GrantSigner
from evoclaw.transport.topics import TopicKind, topic
from evoclaw.transport.wire import Command, Welcome, as_payload
from evoclaw.trust.grants import Grant, Signer, Verifier
from tests.support.fleet import (
    QUICK,
    BrokerListener,
    Fault,
    FleetHarness,
    new_id,
    open_fleet,
)
from tests.support.waiting import until

COMMANDS = topic("pi", TopicKind.COMMANDS)
READ_THE_WEB = Label(untrusted=True, sources=("webfetch",))


@pytest.fixture(name="signer")
def _signer(tmp_path: Path) -> Signer:
    return Signer.load_or_create(tmp_path / "key")


@asynccontextmanager
async def paired(
    folder: Path, signer: Signer, *, online: bool = True, **given: JSON
) -> AsyncGenerator[FleetHarness]:
    """An orchestrator that signs, and an edge that trusts only its key."""
    clock = OrchestratorClock()
    check = SignedGrantCheck("pi", Verifier(signer.public_key), clock)
    grants = given.pop("grants", None) or GrantSigner(signer)
    async with open_fleet(folder, check=check, grants=grants, start=False, **given) as here:
        here.pi.clock = clock
        if online:
            await here.pi.start()
            await here.wait_online()
            await until(lambda: clock.is_set, say="the edge knows the orchestrator's time")
        yield here


def changing(name: str, change: Callable[[dict[str, JSON]], None]) -> Callable[[str, bytes], bytes]:
    """Rewrite the commands of this name."""

    def rewrite(where: str, payload: bytes) -> bytes:
        message = msgspec.json.decode(payload)
        if where != COMMANDS or message["command"] != name:
            return payload
        change(message)
        return msgspec.json.encode(message)

    return rewrite


def set_field(**values: JSON) -> Callable[[dict[str, JSON]], None]:
    return lambda message: message.update(values)


def set_payload(**values: JSON) -> Callable[[dict[str, JSON]], None]:
    return lambda message: message["payload"].update(values)


def expire_later(message: dict[str, JSON]) -> None:
    message["expires_at"] += 3600


CHANGES: dict[str, Callable[[dict[str, JSON]], None]] = {
    "tenant": set_field(tenant="another"),
    "no tenant": set_field(tenant=""),
    "label": set_field(label={}),
    "later expiry": expire_later,
    "no expiry": set_field(expires_at=None),
    "queue time": set_field(queue_ttl_ms=10**9),
    "hops": set_field(hops=1),
    "path": set_field(path=["shed"]),
    "epoch": set_field(epoch=9),
    "run": set_field(run_id="another"),
    "trace": set_field(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    "reply address": set_field(reply_to="evoclaw/agents/evil/reports"),
    "output limit": set_field(max_output_bytes=10**9),
    "alias": set_field(command="execute"),
    "timeout": set_payload(timeout_ms=3_600_000),
    "background": set_payload(background=True),
    "stream": set_payload(stream=True),
    "idle": set_payload(idle_ms=1),
    "arguments": set_payload(parameters={"text": "evil"}),
    "tool": set_payload(tool="hold"),
    "extra key": set_payload(request_id="another"),
}


async def test_a_command_changed_after_it_was_signed_is_not_run(
    tmp_path: Path, signer: Signer
) -> None:
    async with paired(tmp_path, signer) as here, BrokerListener(here.broker) as ear:
        for name, change in CHANGES.items():
            here.link.rewrite = changing("tool", change)
            call = call_of(here, name)
            executor = here.orchestrator.edge("pi")
            asked = asyncio.create_task(executor.execute(call, lambda text: None))
            await until(lambda call=call: bool(ear.results_of(call.request_id)), say=name)
            asked.cancel()

            assert ear.results_of(call.request_id)[0]["status"] == "error", name
            assert here.marks.made == [], name


def test_every_field_of_a_command_is_changed_above() -> None:
    tried = {
        name
        for change in CHANGES.values()
        for name in Command.__struct_fields__
        if _changes(change, name)
    }
    assert {*Command.__struct_fields__} - tried == {"request_id", "v", "args_sha256", "grant"}, (
        "these were always checked; a new field belongs into CHANGES"
    )


def _changes(change: Callable[[dict[str, JSON]], None], name: str) -> bool:
    before: dict[str, JSON] = {"command": "tool", "payload": {}, "expires_at": 1.0, "tenant": "t"}
    before["label"] = {"untrusted": True}
    after: dict[str, JSON] = msgspec.json.decode(msgspec.json.encode(before))
    change(after)
    return before.get(name, "") != after.get(name, "")


def call_of(here: FleetHarness, text: str = "a") -> Call:
    """A call of a tenant whose model has read the web."""
    call = here.call("mark", text=text)
    context = Context(READ_THE_WEB, principal=Principal("acme", "ann"))
    return replace(call, context=context)


async def test_a_call_that_nobody_changed_runs_for_its_tenant_with_its_label(
    tmp_path: Path, signer: Signer
) -> None:
    async with paired(tmp_path, signer) as here:
        result = await here.orchestrator.edge("pi").execute(call_of(here), lambda text: None)

        assert (result.error, result.name, here.marks.made) == (None, "mark", ["a"])


async def test_a_forged_welcome_sets_no_clock_and_cancels_nothing(
    tmp_path: Path, signer: Signer
) -> None:
    async with paired(tmp_path, signer) as here:
        edge = here.pi.edge
        assert edge is not None
        held = here.start_tool("hold", text="a")
        await here.marks.waiting.wait()
        running = [live.request_id for live in edge.calls.live]
        who = edge.parts.identity.boot_id, edge.connection
        forged = Welcome(*who, now=0.0, asked=edge.hello().asked, cancels=running)
        here.publish_command(Command("welcome", as_payload(forged)))
        other = GrantSigner(Signer(b"x" * 32))
        command = Command("welcome", as_payload(forged))
        here.publish_command(replace(command, grant=other("pi", command, None)))
        await until(lambda: edge.counts["refused: welcome"] == 2)

        assert abs(edge.clock.now() - time.time()) < 60
        here.marks.gate.set()
        assert (await held).text == "held a"


async def test_a_welcome_held_back_never_sets_the_clock_back(
    tmp_path: Path, signer: Signer
) -> None:
    """The hello is not signed: a broker could claim that it was sent later than it was."""

    def rewrite(where: str, payload: bytes) -> bytes:
        message = msgspec.json.decode(payload)
        if message.get("report_type") == "hello":
            message["payload"]["asked"] += 86_400.0
        return msgspec.json.encode(message)

    async with paired(tmp_path, signer, online=False) as here:
        here.pi.link.rewrite = rewrite
        edge = await here.pi.start()
        await until(lambda: edge.counts["stale welcome"] > 0)
        assert not edge.clock.is_set

        here.pi.link.rewrite = lambda where, payload: payload
        edge.send_hello()
        await until(lambda: edge.clock.is_set)


async def test_without_a_signed_time_an_edge_runs_nothing(tmp_path: Path, signer: Signer) -> None:
    async with paired(tmp_path, signer, online=False) as here:
        here.link.drop_next('"command":"welcome"', count=10**6)
        edge = await here.pi.start()
        await here.wait_online()
        result = await here.run_tool("mark", text="a", queue=10)

        assert "does not know the orchestrator's time" in result.text
        assert here.marks.made == [] and not edge.clock.is_set


async def test_a_forged_acknowledgement_loses_no_result(tmp_path: Path, signer: Signer) -> None:
    async with paired(tmp_path, signer) as here, BrokerListener(here.broker) as ear:
        edge = here.pi.edge
        assert edge is not None
        request_id = new_id()
        here.pi.link.drop_next('"report_type":"result"', count=1)
        asked = here.start_tool("mark", text="a", request_id=request_id)
        await until(lambda: request_id in edge.reports.unacknowledged)
        here.publish_command(Command("result_ack", {"request_ids": [request_id]}))
        await until(lambda: edge.counts["refused: result_ack"] == 1)

        assert (await asked).text == "marked a"
        assert ear.results_of(request_id)
        await until(lambda: request_id not in edge.reports.unacknowledged)


async def test_an_older_change_of_settings_does_not_undo_a_newer_one(
    tmp_path: Path, signer: Signer
) -> None:
    async with paired(tmp_path, signer) as here, BrokerListener(here.broker) as ear:

        async def prompt(text: str) -> None:
            outcome = await here.orchestrator.query("pi", "update_genome", {"prompt": text})
            assert outcome.status == "success"

        await prompt("Anything goes.")
        await prompt("Ask before you act.")
        first, last = [payload for _, payload in here.link.sent if b"update_genome" in payload]
        for restart in (False, True):
            if restart:
                await here.pi.stop()
                here.pi.clock = None
                clock = OrchestratorClock()
                here.pi.clock = clock
                here.pi.check = SignedGrantCheck("pi", Verifier(signer.public_key), clock)
                edge = await here.pi.start()
                await until(lambda edge=edge: edge.clock.is_set)
            old = msgspec.json.decode(first)["request_id"]
            told = len(ear.results_of(old))
            here.publish_command(first)
            await until(lambda told=told, old=old: len(ear.results_of(old)) > told)
            assert ear.results_of(old)[-1]["error_type"] == "conflict"
            genome = (await here.orchestrator.query("pi", "evolution")).result["genome"]
            assert genome["prompt"] == "Ask before you act."
        newest = msgspec.json.decode(last)["request_id"]
        here.publish_command(last)  # as a retry of the orchestrator would
        await until(lambda: len(ear.results_of(newest)) > 1)
        assert ear.results_of(newest)[-1]["status"] == "success"


async def test_a_grant_of_an_older_orchestrator_is_refused_with_what_to_do(
    tmp_path: Path, signer: Signer
) -> None:
    modern = GrantSigner(signer)

    def older(agent_id: str, command: Command, call: Call | None) -> str:
        text = modern(agent_id, command, call)
        if command.command in ("welcome", "result_ack"):
            return ""
        grant = msgspec.json.decode(decode_base64url(text.partition(".")[0]), type=Grant)
        return signer.sign(replace(grant, fields=None, payload_sha256=""))

    async with paired(tmp_path, signer, online=False, grants=older) as here:
        await here.pi.start()
        await here.wait_online()
        result = await here.run_tool("mark", text="a", queue=20)

        assert result.error is ErrorKind.PERMISSION_DENIED
        assert "update the orchestrator" in result.text
        assert here.marks.made == []


def test_an_older_edge_reads_a_new_grant_as_before(signer: Signer) -> None:
    class OlderGrant(Struct, frozen=True, kw_only=True, omit_defaults=True):
        agent: str
        tenant: str = ""
        request_id: str
        run_id: str = ""
        epoch: int = 0
        tool: str
        args_sha256: str
        issued_at: float
        life_s: float

    command = Command("cancel", {"request_id": "r.1.0.1"}, "c1", label=READ_THE_WEB)
    text = GrantSigner(signer)("pi", command, None)
    grant = msgspec.json.decode(decode_base64url(text.partition(".")[0]), type=OlderGrant)
    assert (grant.agent, grant.tool, grant.request_id) == ("pi", "cancel", "c1")


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_a_broker_does_each_granted_call_runs_once_at_most_and_no_other(
    tmp_path: Path, signer: Signer, seed: int
) -> None:
    """Half of all messages suffer; what was sent is sent again, changed, or in another order."""
    chance, judged = random.Random(seed), JudgedCalls()
    limits = replace(QUICK, heartbeat_s=0.2)
    async with paired(tmp_path, signer, limits=limits, policy=judged) as here:
        seen: list[tuple[str, bytes]] = []

        def rewrite(where: str, payload: bytes) -> bytes:
            seen.append((where, payload))
            return mutated(payload, chance) if chance.random() < 0.25 else payload

        def fault(where: str, payload: bytes) -> Fault:
            if seen and chance.random() < 0.3:
                there, again = chance.choice(seen)
                changed = mutated(again, chance) if chance.random() < 0.5 else again
                asyncio.get_running_loop().call_soon(publish, there, changed)
            kinds = [Fault.DROP, Fault.TWICE, Fault.LATER]
            return chance.choice(kinds) if chance.random() < 0.3 else Fault.NONE

        def publish(where: str, payload: bytes) -> None:
            here.broker.publish(where, payload, retain=False)

        for link in (here.link, here.pi.link):
            link.rewrite, link.fault = rewrite, fault
        wanted = [f"{seed}.{number}" for number in range(20)]
        executor = here.orchestrator.edge("pi", queue=2.0)
        calls = [replace(call_of(here, text), timeout=1.0) for text in wanted]
        results = await asyncio.gather(
            *(executor.execute(call, lambda text: None) for call in calls)
        )
        for link in (here.link, here.pi.link):
            link.rewrite, link.fault = lambda _, payload: payload, lambda _, payload: Fault.NONE
        for where, payload in tuple(seen):  # and everything once more, in the end
            publish(where, payload)
            for changed in variants(payload):
                publish(where, changed)
            await asyncio.sleep(0)
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: edge.calls.in_flight + edge.calls.queued == 0, seconds=30)

        assert len(here.marks.made) == len({*here.marks.made})
        assert {*here.marks.made} <= {*wanted}
        assert len(results) == len(wanted)
        assert abs(edge.clock.now() - time.time()) < 60
        assert edge.parts.genomes.current().prompt == ""
        assert judged.contexts <= {("acme", READ_THE_WEB, 1.0)}


EVIL: dict[str, list[JSON]] = {
    "parameters": [{"text": "evil"}],
    "text": ["evil"],
    "now": [0.0, 1e12],
    "asked": [0.0, 1e12],
    "command": ["update_genome", "shutdown", "execute", "cancel"],
    "label": [{}],
    "tenant": ["evil"],
    "expires_at": [None, 1e12],
    "epoch": [99],
    "background": [True],
    "timeout_ms": [1e9],
    "cancels": [["x"]],
    "grant": ["", "e30.e30"],
    "status": ["success", "error"],
    "result": ["evil"],
    "prompt": ["evil"],
}


class JudgedCalls(Policy):
    """Allows every call, and notes for whom, after what and for how long it is to run."""

    def __init__(self) -> None:
        self.contexts: set[tuple[str, Label, float]] = set()

    async def judge(self, call: Call) -> Verdict:
        context = call.context
        self.contexts.add((context.principal.tenant, context.label, call.timeout))
        return ALLOW


OPTIONAL = ("background", "cancels", "label", "prompt")
"""Names that are also added where they are missing."""


def mutated(payload: bytes, chance: random.Random) -> bytes:
    """A message with something else in one of its fields, at any depth."""
    return chance.choice(list(variants(payload)))


def variants(payload: bytes) -> Iterator[bytes]:
    """The message with each of its objects changed in each way that might gain something."""
    count = len(_objects(msgspec.json.decode(payload)))
    for index in range(count):
        for name, values in EVIL.items():
            for value in values:
                message = msgspec.json.decode(payload)
                place = _objects(message)[index]
                if name in place or name in OPTIONAL:
                    place[name] = value
                    yield msgspec.json.encode(message)


def _objects(message: dict[str, JSON]) -> list[dict[str, JSON]]:
    found = [message]
    for place in found:
        found.extend(value for value in place.values() if is_object(value))
    return found
