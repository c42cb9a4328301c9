"""strands-agents: `Agent.invoke_async`, no printing; telemetry is off unless set up."""

import asyncio
from contextlib import asynccontextmanager

import loop_harness


def events(calls):
    yield {"messageStart": {"role": "assistant"}}
    for id, _, text in calls:
        yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": id, "name": "add"}}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": text}}}}
        yield {"contentBlockStop": {}}
    if not calls:
        yield {"contentBlockDelta": {"delta": {"text": "done"}}}
        yield {"contentBlockStop": {}}
    yield {"messageStop": {"stopReason": "tool_use" if calls else "end_turn"}}


def fake_model():
    from strands.models.model import Model

    class Fake(Model):
        def __init__(self, script):
            self.script = script

        def update_config(self, **config):
            pass

        def get_config(self):
            return {"model_id": "fake"}

        def structured_output(self, *args, **kwargs):
            raise NotImplementedError

        async def stream(self, messages, tool_specs=None, system_prompt=None, **kwargs):
            if self.script.waits:
                await asyncio.sleep(0)
            for event in events(self.script.reply()):
                yield event

    return Fake


def build(session=lambda: None):
    from strands import Agent, tool
    from strands.agent.conversation_manager import NullConversationManager

    Fake = fake_model()

    @tool
    async def add(a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: The one.
            b: The other.
        """
        return str(loop_harness.add_up(a, b))

    def prepare(script):
        agent = Agent(
            model=Fake(script),
            tools=[add],
            callback_handler=None,
            conversation_manager=NullConversationManager(),
            load_tools_from_directory=False,
            session_manager=session(),
        )

        async def start():
            return await agent.invoke_async("go")

        return start

    return prepare


def describe():
    from strands import tool

    return lambda function: tool(function).tool_spec["inputSchema"]


@asynccontextmanager
async def stored(folder: str):
    """Its `FileSessionManager`: a file for each message, which it does not sync."""
    from pathlib import Path

    from strands.session.file_session_manager import FileSessionManager

    count = 0

    def session():
        nonlocal count
        count += 1
        return FileSessionManager(f"s{count}", f"{folder}/sessions")

    def files() -> int:
        return len(list(Path(folder, "sessions", f"session_s{count}").rglob("message_*.json")))

    async def kept() -> int:
        return files()

    yield build(session), kept


if __name__ == "__main__":
    loop_harness.main(build, describe, stored)
