"""langgraph: a `StateGraph` of a model node and a `ToolNode`, tracing off, no checkpointer."""

import asyncio
import os
from contextlib import asynccontextmanager

import loop_harness

threads: list[dict] = []


def fake_model():
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

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

    return Fake


def build(saver=None):
    os.environ["LANGSMITH_TRACING"] = "false"
    from langchain_core.tools import tool
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    Fake = fake_model()

    @tool
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(loop_harness.add_up(a, b))

    def prepare(script):
        model = Fake(script=script)

        async def think(state: MessagesState):
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("think", think)
        graph.add_node("tools", ToolNode([add]))
        graph.add_edge(START, "think")
        graph.add_conditional_edges("think", tools_condition)
        graph.add_edge("tools", "think")
        agent = graph.compile(checkpointer=saver)
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
    from langchain_core.tools import tool
    from langchain_core.utils.function_calling import convert_to_openai_tool

    make = tool(parse_docstring=True)
    return lambda function: convert_to_openai_tool(make(function))


@asynccontextmanager
async def stored(folder: str):
    """Its SQLite checkpointer, a thread for each run; a step is kept before the next begins."""
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(f"{folder}/checkpoints.db") as saver:
        await saver.setup()

        async def kept() -> int:
            last = await saver.aget(threads[-1])
            return len(last["channel_values"]["messages"])

        yield build(saver), kept


if __name__ == "__main__":
    loop_harness.main(build, describe, stored)
