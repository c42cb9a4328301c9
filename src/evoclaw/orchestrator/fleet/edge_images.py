"""Fetches the images of an edge's result that were too large for one message."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable

from msgspec.structs import replace

from evoclaw.core.images import IMAGE_MEDIA_TYPES
from evoclaw.core.messages import (
    JSON,
    Block,
    ImageBlock,
    TextBlock,
    ToolResult,
    is_array,
    is_object,
)
from evoclaw.core.pipeline import Execution, ResultStep
from evoclaw.core.routes import Place
from evoclaw.executors.edge import EdgeExecutor
from evoclaw.orchestrator.fleet.artifacts import FetchFailed, fetch_bytes

MAX_FETCHED_IMAGES = 4
"""Of one result."""
MAX_FETCHED_IMAGE_BYTES = 4 << 20


class FetchImages(ResultStep):
    """Fetches the images that an edge kept because they are too large for one message."""

    def __init__(self, edge: Callable[[str], EdgeExecutor], max_message_bytes: int) -> None:
        """Fetch from edges.

        Args:
            edge: Gives the executor of one edge.
            max_message_bytes: Of one message of the broker.
        """
        self._edge, self._max_message_bytes = edge, max_message_bytes

    async def finish(self, execution: Execution, result: ToolResult) -> ToolResult:
        """Put each image in the place of its note; a note stays if its image cannot be fetched."""
        kept, agent_id = result.details.get("images"), result.details.get("agent")
        remote = execution.route.place is Place.EDGE and isinstance(agent_id, str)
        if not remote or not is_array(kept):
            return result
        blocks = list(result.blocks)
        for entry in kept[:MAX_FETCHED_IMAGES]:
            await self._fetch(str(agent_id), entry, blocks)
        return replace(result, blocks=tuple(blocks))

    async def _fetch(self, agent_id: str, entry: JSON, blocks: list[Block]) -> None:
        handle = entry.get("handle") if is_object(entry) else None
        media_type = entry.get("media_type") if is_object(entry) else None
        if not isinstance(handle, str) or media_type not in IMAGE_MEDIA_TYPES:
            return
        for place, block in enumerate(blocks):
            if isinstance(block, TextBlock) and handle in block.text:
                try:
                    data = await fetch_bytes(
                        self._edge(agent_id),
                        handle,
                        self._max_message_bytes,
                        max_bytes=MAX_FETCHED_IMAGE_BYTES,
                    )
                except FetchFailed:
                    return
                image = ImageBlock(str(media_type), b64encode(data).decode(), block.label)
                blocks[place] = image
                return
