"""EvoClaw: `run_loop` with a local tool, a chain of policies, and a bus that records to bytes."""

from contextlib import asynccontextmanager

import loop_harness


def fake_provider():
    import asyncio

    import msgspec

    from evoclaw.core.events import Replied
    from evoclaw.core.messages import Finish, Reply, ToolCall, Usage
    from evoclaw.core.profile import Profile
    from evoclaw.providers.request_encoding import JoinedMessages

    encode = msgspec.json.Encoder().encode
    usage = Usage(10, 10)

    class Fake:
        model = "bench/fake"
        profile = Profile(context_tokens=10_000_000)

        def __init__(self, script: loop_harness.Script) -> None:
            self.script = script

        async def stream(self, request):
            if self.script.waits:
                await asyncio.sleep(0)
            # As a real provider: encode only new messages, send the whole request.
            messages = request.history.encoded("bench", lambda: JoinedMessages(encode))
            if self.script.whole:
                b"".join((b'{"messages":[', messages.text, b"]}"))
            calls = tuple([ToolCall(id, "add", text) for id, _, text in self.script.reply()])
            if calls:
                yield Replied(Reply("", calls, Finish.CALLS, usage))
            else:
                yield Replied(Reply("done", usage=usage))

    return Fake


def recorder():
    import msgspec

    encode = msgspec.json.Encoder().encode

    class Recorder:
        def receive(self, record) -> None:
            self.last = encode(record)

    return Recorder()


def local_executor():
    from evoclaw.executors.local import LocalExecutor
    from evoclaw.tools.define import tool

    @tool("file_read", effect="read")
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return loop_harness.add_up(a, b)

    return LocalExecutor([add])


def policies():
    from evoclaw.core.chain import Chain
    from evoclaw.governance.autonomy import Autonomy, Level
    from evoclaw.governance.permissions import Permissions

    return Chain((Permissions(frozenset({"file_read"})), Autonomy(Level.SUPERVISED)))


def build():
    from evoclaw.core.agent import LoopSettings
    from evoclaw.core.loop import run_loop
    from evoclaw.core.messages import user
    from evoclaw.core.ports import Ports
    from evoclaw.core.run import Bus, recorded
    from evoclaw.core.state import new_run

    Fake, executor, policy, sink = fake_provider(), local_executor(), policies(), recorder()

    def prepare(script: loop_harness.Script):
        ports = Ports(Fake(script), executor, policy)
        settings = LoopSettings(max_turns=script.turns + 1)

        async def start() -> None:
            state = new_run([user("go")])
            bus = Bus(state.run_id, [sink])
            async for _ in recorded(run_loop(state, ports, settings), bus):
                pass

        return start

    return prepare


def describe():
    from evoclaw.tools.define import tool

    make = tool("file_read", effect="read")
    return lambda function: make(function).tool.parameters


@asynccontextmanager
async def stored(folder: str):
    """A session in the store of `evoclaw up`, with the same write barriers."""
    from pathlib import Path

    from evoclaw.core.agent import Agent, LoopSettings
    from evoclaw.core.pipeline import Pipeline
    from evoclaw.core.ports import Ports
    from evoclaw.core.routes import Route
    from evoclaw.orchestrator.sessions.conversations import Conversations
    from evoclaw.providers.wrappers import WriteBarrierProvider
    from evoclaw.store.databases.write_requests import write_scope
    from evoclaw.store.sessions.sessions import SessionStore

    Fake, executor, policy, scripts = fake_provider(), local_executor(), policies(), {}
    settings = LoopSettings(max_turns=loop_harness.TURNS + 1)
    agent = Agent("bench", "", capabilities=frozenset({"file_read"}), settings=settings)

    async with await SessionStore.open(Path(folder) / "evoclaw.db") as store:
        flush = store.database.flush

        def make_ports(agent, session, given) -> Ports:
            provider = WriteBarrierProvider(Fake(scripts[session.id]), flush)
            return Ports(provider, Pipeline([Route(executor, ready=flush)]), policy)

        conversations = Conversations(store, {"bench": agent}, make_ports, defer_commits=True)

        def prepare(script: loop_harness.Script):
            id = f"s{len(scripts)}"
            scripts[id] = script

            async def start() -> None:
                await conversations.open("bench", session_id=id)
                with write_scope():  # as the driver of a run does
                    async for _ in conversations.send(id, "go"):
                        pass

            return start

        async def kept() -> int:
            return len(await store.messages(f"s{len(scripts) - 1}"))

        yield prepare, kept


if __name__ == "__main__":
    loop_harness.main(build, describe, stored)
