"""An MCP server made with the official SDK: pictures, resources, prompts and questions to people.

Run as `python mcp_features.py` over stdin and stdout, or import `features`.
"""

from __future__ import annotations

import base64
import json
import random
from typing import Annotated

from mcp.server.mcpserver import Elicit, ElicitationResult, MCPServer, Resolve
from mcp.types import ImageContent
from pydantic import BaseModel, Field


class Booking(BaseModel):
    """What the person is asked for."""

    seats: int = Field(description="How many people")
    name: str = Field(default="Ada", description="For whom")
    outside: bool = Field(default=False, description="Whether outside")


async def ask_table() -> Elicit[Booking]:
    """What `reserve` asks first."""
    return Elicit("Which table?", Booking)


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

    @server.tool()
    async def reserve(table: Annotated[ElicitationResult[Booking], Resolve(ask_table)]) -> str:
        """Ask the user with an unfinished result, as 2026-07-28 has it."""
        return f"{table.action}: {table.data if table.action == 'accept' else 'nothing'}"

    _add_texts(server)
    return server


def _add_texts(server: MCPServer) -> None:
    @server.resource("note://{name}", mime_type="text/plain")
    def note(name: str) -> str:
        """A note by its name."""
        return f"the note {name}"

    @server.resource("list://shopping", mime_type="text/plain")
    def shopping() -> str:
        """What to buy."""
        return "bread, milk"

    @server.resource("image://lake", mime_type="image/png")
    def lake() -> bytes:
        """A picture of a lake."""
        return base64.b64decode(PICTURE)

    @server.prompt()
    def recipe(dish: str) -> str:
        """How to cook a dish."""
        return f"Explain how to cook {dish}."


if __name__ == "__main__":
    features().run("stdio")
