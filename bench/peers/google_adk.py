"""google-adk: `Runner.run_async` over an in-memory session; its spans go to no exporter."""

import asyncio
import itertools
from contextlib import asynccontextmanager

import loop_harness


def build(kept_in=None):
    from google.adk.agents import LlmAgent
    from google.adk.agents.run_config import RunConfig
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import Runner
    from google.adk.sessions import InMemorySessionService
    from google.genai import types

    async def add(a: int, b: int) -> dict:
        """Add two numbers."""
        return {"result": loop_harness.add_up(a, b)}

    # Stated, or it would log a warning each turn.
    usage = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=10, candidates_token_count=10, total_token_count=20
    )

    class Fake(BaseLlm):
        script: object

        async def generate_content_async(self, llm_request, stream=False):
            if self.script.waits:
                await asyncio.sleep(0)
            parts = [
                types.Part(function_call=types.FunctionCall(id=id, name="add", args=args))
                for id, args, _ in self.script.reply()
            ]
            content = types.Content(role="model", parts=parts or [types.Part(text="done")])
            yield LlmResponse(content=content, usage_metadata=usage)

    numbers = itertools.count()

    def prepare(script):
        agent = LlmAgent(name="bench", model=Fake(model="fake", script=script), tools=[add])
        sessions = kept_in or InMemorySessionService()
        runner = Runner(agent=agent, app_name="bench", session_service=sessions)
        session = f"s{next(numbers)}"
        message = types.Content(role="user", parts=[types.Part(text="go")])
        config = RunConfig(max_llm_calls=script.turns + 2)

        async def start():
            await sessions.create_session(app_name="bench", user_id="u", session_id=session)
            async for _ in runner.run_async(
                user_id="u", session_id=session, new_message=message, run_config=config
            ):
                pass

        return start

    return prepare


def describe():
    from google.adk.tools import FunctionTool

    return lambda function: FunctionTool(function)._get_declaration().model_dump()


@asynccontextmanager
async def stored(folder: str):
    """Its `SqliteSessionService`: each event, when it has happened."""
    from google.adk.sessions.sqlite_session_service import SqliteSessionService

    sessions = SqliteSessionService(f"{folder}/sessions.db")

    async def kept() -> int:
        listed = await sessions.list_sessions(app_name="bench", user_id="u")
        last = max(listed.sessions, key=lambda one: one.last_update_time)
        found = await sessions.get_session(app_name="bench", user_id="u", session_id=last.id)
        return len(found.events)

    yield build(sessions), kept


if __name__ == "__main__":
    loop_harness.main(build, describe, stored)
