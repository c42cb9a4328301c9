"""An MCP server made with the official SDK: pictures, resources, prompts and questions to people.

Run as `python mcp_features.py` over stdin and stdout, or import `features`.
"""

from __future__ import annotations

import base64
import json
import random

from mcp.server.mcpserver import MCPServer
from mcp.types import ImageContent

PICTURE_BYTES = 43_000
PICTURE = base64.b64encode(
    bytes.fromhex("89504e470d0a1a0a") + random.Random(7).randbytes(PICTURE_BYTES - 8)
).decode()


def features() -> MCPServer:
    """A server with one tool for each kind of answer."""
    server = MCPServer("features")

    @server.tool()
    def picture() -> ImageContent:
        """Show a picture; the SDK repeats it as structured content."""
        return ImageContent(type="image", mime_type="image/png", data=PICTURE)

    @server.tool()
    def picture_in_json() -> dict[str, str]:
        """Show a picture inside an object; the SDK sends it as text and as structured content."""
        return {"title": "a lake", "data": PICTURE}

    @server.tool()
    def archive() -> str:
        """Send data that is no picture."""
        return json.dumps({"zip": base64.b64encode(random.Random(8).randbytes(9_000)).decode()})

    @server.tool()
    def weather(town: str) -> dict[str, str | int]:
        """Say how warm it is; the SDK sends it as text and as structured content."""
        return {"town": town, "degrees": 21}

    @server.tool()
    def towns() -> list[str]:
        """List towns; each is a text of its own, and all are structured content."""
        return ["Bergen", "Oslo"]

    return server


if __name__ == "__main__":
    features().run("stdio")
