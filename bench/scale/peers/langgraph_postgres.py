"""langgraph with its PostgreSQL checkpointer, `durability="sync"`: a thread for each run."""

import asyncio

import peer_load
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

MAX_CONNECTIONS = 10


@tool
async def todoread() -> str:
    """Read the list of things to do."""
    return "nothing to do"


async def think(state: MessagesState):
    """The scripted model: a call first, then the answer."""
    called = any(isinstance(message, ToolMessage) for message in state["messages"])
    calls = [] if called else [{"id": "c1", "name": "todoread", "args": {}, "type": "tool_call"}]
    return {"messages": [AIMessage(content=peer_load.words(), tool_calls=calls)]}


async def main(plan):
    """Measure with a pool of connections, as the documentation of the checkpointer shows."""
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(
        plan["url"], max_size=MAX_CONNECTIONS, kwargs=options, open=False
    ) as pool:
        saver = AsyncPostgresSaver(pool)
        if plan["process"] == 0:
            await saver.setup()
        graph = StateGraph(MessagesState)
        graph.add_node("think", think)
        graph.add_node("tools", ToolNode([todoread]))
        graph.add_edge(START, "think")
        graph.add_conditional_edges("think", tools_condition)
        graph.add_edge("tools", "think")
        agent = graph.compile(checkpointer=saver)

        async def run(number):
            config = {"configurable": {"thread_id": f"{plan['process']}-{number}"}}
            given = {"messages": [("user", "go")]}
            found = await agent.ainvoke(given, config, durability="sync")
            assert len(found["messages"]) == 4, found

        await peer_load.run_load(run, plan)


if __name__ == "__main__":
    asyncio.run(main(peer_load.plan()))
