"""agno: `Agent.arun` without telemetry, no database."""

import asyncio

import clock


def build():
    from agno.agent import Agent
    from agno.models.base import Model
    from agno.models.response import ModelResponse

    async def add(a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: The one.
            b: The other.
        """
        return str(clock.add_up(a, b))

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
        agent = Agent(model=Fake(script), tools=[add], telemetry=False)

        async def start():
            return await agent.arun("go")

        return start

    return prepare


if __name__ == "__main__":
    clock.main(build)
