"""A local server that streams a reply of 500 chunks, in both vendors' dialects; run as a process.

It prints its port, then serves until it is killed. Each chunk is one write, without pauses.
"""

import asyncio
import json

CHUNKS = 500
WORD = "word "


def _openai() -> list[str]:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "bench"}

    def chunk(delta: dict, finish: str | None = None) -> dict:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    usage = {"prompt_tokens": 10, "completion_tokens": CHUNKS, "total_tokens": CHUNKS + 10}
    said = [chunk({"role": "assistant", "content": ""})]
    said += [chunk({"content": WORD})] * CHUNKS
    said += [chunk({}, "stop"), {**head, "choices": [], "usage": usage}]
    return [f"data: {json.dumps(one)}\n\n" for one in said] + ["data: [DONE]\n\n"]


def _anthropic() -> list[str]:
    message = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "bench",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }
    text = {"type": "text", "text": ""}
    delta = {"type": "text_delta", "text": WORD}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    said = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": text},
        *[{"type": "content_block_delta", "index": 0, "delta": delta}] * CHUNKS,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": CHUNKS}},
        {"type": "message_stop"},
    ]
    return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in said]


def _framed(events: list[str]) -> list[bytes]:
    return [f"{len(one):x}\r\n{one}\r\n".encode() for one in events] + [b"0\r\n\r\n"]


BODIES = {"openai": _framed(_openai()), "anthropic": _framed(_anthropic())}
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))
            body = BODIES["anthropic" if b"/messages" in head.partition(b"\r\n")[0] else "openai"]
            writer.write(HEAD)
            for chunk in body:
                writer.write(chunk)
                await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    """Serve on a free port of the loopback."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
