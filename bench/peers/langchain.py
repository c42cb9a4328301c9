"""langchain: `create_agent(...).ainvoke` with LangSmith tracing off and no checkpointer."""

import asyncio
import os

import clock


def build():
    os.environ["LANGSMITH_TRACING"] = "false"
    from langchain.agents import create_agent
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import tool

    @tool
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(clock.add_up(a, b))

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
        agent = create_agent(Fake(script=script), [add])
        config = {"recursion_limit": 10 * script.turns + 10}

        async def start():
            return await agent.ainvoke({"messages": [("user", "go")]}, config)

        return start

    return prepare


if __name__ == "__main__":
    clock.main(build)
