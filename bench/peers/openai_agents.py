"""openai-agents: `Runner.run` with tracing disabled."""

import asyncio

import clock


def fake_model():
    from agents import Model, ModelResponse, Usage
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    final = ResponseOutputMessage(
        id="m",
        type="message",
        role="assistant",
        status="completed",
        content=[ResponseOutputText(text="done", type="output_text", annotations=[])],
    )

    class Fake(Model):
        def __init__(self, script):
            self.script = script

        async def get_response(self, *args, **kwargs):
            if self.script.waits:
                await asyncio.sleep(0)
            output = [
                ResponseFunctionToolCall(
                    id=id, call_id=id, name="add", arguments=text, type="function_call"
                )
                for id, _, text in self.script.reply()
            ]
            return ModelResponse(output=output or [final], usage=Usage(), response_id=None)

        def stream_response(self, *args, **kwargs):
            raise NotImplementedError

    return Fake


def build():
    from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    Fake = fake_model()

    @function_tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return clock.add_up(a, b)

    def prepare(script):
        agent = Agent(name="bench", model=Fake(script), tools=[add])
        config = RunConfig(tracing_disabled=True)

        async def start():
            return await Runner.run(agent, "go", max_turns=script.turns + 2, run_config=config)

        return start

    return prepare


if __name__ == "__main__":
    clock.main(build)
