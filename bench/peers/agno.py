"""agno: `Agent.arun` without telemetry, no database."""

import asyncio
from contextlib import asynccontextmanager

import loop_harness

sessions: list[str] = []


def named() -> str:
    """The id of another session."""
    sessions.append(f"s{len(sessions)}")
    return sessions[-1]


def build(database=None):
    from agno.agent import Agent
    from agno.models.base import Model
    from agno.models.response import ModelResponse

    async def add(a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: The one.
            b: The other.
        """
        return str(loop_harness.add_up(a, b))

    class Fake(Model):
        def __init__(self, script):
            super().__init__(id="fake", name="fake", provider="fake")
            self.script = script

        async def ainvoke(self, *args, **kwargs):
            if self.script.waits:
                await asyncio.sleep(0)
            calls = [
                {"id": id, "type": "function", "function": {"name": "add", "arguments": text}}
                for id, _, text in self.script.reply()
            ]
            return ModelResponse(
                role="assistant", content=None if calls else "done", tool_calls=calls
            )

        def invoke(self, *args, **kwargs):
            raise NotImplementedError

        invoke_stream = ainvoke_stream = invoke
        _parse_provider_response = _parse_provider_response_delta = invoke

    def prepare(script):
        agent = Agent(
            model=Fake(script), tools=[add], telemetry=False, db=database, session_id=named()
        )

        async def start():
            return await agent.arun("go")

        return start

    return prepare


def describe():
    from agno.tools.function import Function

    return lambda function: Function.from_callable(function).to_dict()


@asynccontextmanager
async def stored(folder: str):
    """Its SQLite database. It keeps a run when it has ended, and nothing of it before."""
    from agno.db.base import SessionType
    from agno.db.sqlite import AsyncSqliteDb

    database = AsyncSqliteDb(db_file=f"{folder}/agno.db")

    async def kept() -> int:
        found = await database.get_session(sessions[-1], SessionType.AGENT)
        return sum(len(run.messages) for run in found.runs)

    yield build(database), kept
    await database.close()


if __name__ == "__main__":
    loop_harness.main(build, describe, stored)
