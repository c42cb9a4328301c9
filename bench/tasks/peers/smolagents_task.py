"""smolagents: `ToolCallingAgent` on an OpenAI-compatible server."""

import folder_tools


def run(asked, tools):
    from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def read(path: str) -> str:
        """Read a text file.

        Args:
            path: The file, relative to the folder.
        """
        return tools.read(path)

    @tool
    def write(path: str, content: str) -> str:
        """Write a text file, instead of what was in it.

        Args:
            path: The file, relative to the folder.
            content: All of the file's new text.
        """
        return tools.write(path, content)

    @tool
    def list_files() -> str:
        """List all files of the folder."""
        return tools.list_files()

    @tool
    def shell(command: str) -> str:
        """Run a shell command in the folder.

        Args:
            command: The command line.
        """
        return tools.shell(command)

    model = OpenAIServerModel(
        asked["model"], api_base=asked["base_url"], api_key="none", temperature=0.0
    )
    agent = ToolCallingAgent(
        [read, write, list_files, shell],
        model,
        max_steps=asked["turns"],
        verbosity_level=LogLevel.OFF,
    )
    answer = agent.run(asked["prompt"])
    usage = agent.monitor.get_total_token_counts()
    return str(answer), usage.input_tokens + usage.output_tokens


if __name__ == "__main__":
    folder_tools.main(run)
