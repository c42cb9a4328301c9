"""langchain: `create_agent(...).ainvoke` with LangSmith tracing off and no checkpointer."""

import asyncio
import os
from contextlib import asynccontextmanager

import loop_harness

threads: list[dict] = []


def build(saver=None):
    os.environ["LANGSMITH_TRACING"] = "false"
    from langchain.agents import create_agent
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import tool

    @tool
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(loop_harness.add_up(a, b))

    class Fake(BaseChatModel):
        script: object

        @property
        def _llm_type(self):
            return "fake"

        def bind_tools(self, tools, **kwargs):
            return self

        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            raise NotImplementedError

        async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
            if self.script.waits:
                await asyncio.sleep(0)
            calls = [
                {"id": id, "name": "add", "args": args, "type": "tool_call"}
                for id, args, _ in self.script.reply()
            ]
            message = AIMessage(content="" if calls else "done", tool_calls=calls)
            return ChatResult(generations=[ChatGeneration(message=message)])

    def prepare(script):
        agent = create_agent(Fake(script=script), [add], checkpointer=saver)
        config = {"recursion_limit": 10 * script.turns + 10}
        more = {}
        if saver:
            threads.append({"configurable": {"thread_id": f"s{len(threads)}"}})
            config |= threads[-1]
            more = {"durability": "sync"}

        async def start():
            return await agent.ainvoke({"messages": [("user", "go")]}, config, **more)

        return start

    return prepare


def describe():
    from langchain.tools import tool
    from langchain_core.utils.function_calling import convert_to_openai_tool

    make = tool(parse_docstring=True)
    return lambda function: convert_to_openai_tool(make(function))


@asynccontextmanager
async def stored(folder: str):
    """The SQLite checkpointer of langgraph, a thread for each run, each step before the next."""
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(f"{folder}/checkpoints.db") as saver:
        await saver.setup()

        async def kept() -> int:
            last = await saver.aget(threads[-1])
            return len(last["channel_values"]["messages"])

        yield build(saver), kept


if __name__ == "__main__":
    loop_harness.main(build, describe, stored)
