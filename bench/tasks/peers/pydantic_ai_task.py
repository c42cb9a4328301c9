"""pydantic-ai (slim): `Agent` on an OpenAI-compatible server."""

import folder_tools


def run(asked, tools):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.usage import UsageLimits

    provider = OpenAIProvider(base_url=asked["base_url"], api_key="none")
    agent = Agent(
        OpenAIChatModel(asked["model"], provider=provider),
        instructions="You are an assistant that works in a folder through tools. Answer briefly.",
        model_settings={"temperature": 0.0},
    )

    @agent.tool_plain
    def read(path: str) -> str:
        """Read a text file.

        Args:
            path: The file, relative to the folder.
        """
        return tools.read(path)

    @agent.tool_plain
    def write(path: str, content: str) -> str:
        """Write a text file, instead of what was in it.

        Args:
            path: The file, relative to the folder.
            content: All of the file's new text.
        """
        return tools.write(path, content)

    @agent.tool_plain
    def list_files() -> str:
        """List all files of the folder."""
        return tools.list_files()

    @agent.tool_plain
    def shell(command: str) -> str:
        """Run a shell command in the folder.

        Args:
            command: The command line.
        """
        return tools.shell(command)

    done = agent.run_sync(asked["prompt"], usage_limits=UsageLimits(request_limit=asked["turns"]))
    usage = done.usage() if callable(done.usage) else done.usage
    return str(done.output), usage.input_tokens + usage.output_tokens


if __name__ == "__main__":
    folder_tools.main(run)
