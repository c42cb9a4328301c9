"""smolagents: `ToolCallingAgent`, no console output; not async, so concurrent runs are threads."""

import time

import loop_harness


def fake_model():
    from smolagents import Model
    from smolagents.models import (
        ChatMessage,
        ChatMessageToolCall,
        ChatMessageToolCallFunction,
        MessageRole,
    )

    def asked(id, name, arguments):
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        return ChatMessageToolCall(id=id, type="function", function=function)

    class Fake(Model):
        def __init__(self, script):
            super().__init__(model_id="fake")
            self.script = script

        def generate(self, messages, **kwargs):
            if self.script.waits:
                time.sleep(0)
            calls = [asked(id, "add", args) for id, args, _ in self.script.reply()]
            if not calls:
                calls = [asked("end", "final_answer", {"answer": "done"})]
            return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=calls)

    return Fake


def build():
    from smolagents import LogLevel, ToolCallingAgent, tool

    Fake = fake_model()

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The one.
            b: The other.
        """
        return loop_harness.add_up(a, b)

    # Read once: by default each agent parses its YAML file anew.
    templates = ToolCallingAgent([add], Fake(None)).prompt_templates

    def prepare(script):
        agent = ToolCallingAgent(
            [add],
            Fake(script),
            prompt_templates=templates,
            max_steps=script.turns + 2,
            verbosity_level=LogLevel.OFF,
        )

        def start():
            return agent.run("go")

        return start

    return prepare


def describe():
    from smolagents import tool
    from smolagents.models import get_tool_json_schema

    return lambda function: get_tool_json_schema(tool(function))


if __name__ == "__main__":
    loop_harness.main(build, describe)
