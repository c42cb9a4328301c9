"""A model without a model, for the guide on evolution: it adds, and talks too much.

    python examples/evolution/scripted_model.py 8123

It speaks the chat-completions dialect. Asked for a sum, it answers with a whole sentence, unless
its instructions say "result only" or "few words". Asked to improve a text, it suggests one that
says so.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BETTER = "Answer with the result only, without any other word."
SUM = re.compile(r"(\d+) plus (\d+)")


def answer(messages: list[dict[str, Any]]) -> str:
    """What it says."""
    texts = [_text(message["content"]) for message in messages]
    if "between <text> and </text>" in texts[-1]:
        return f"<text>{BETTER}</text>"
    asked = SUM.search(next(text for text in reversed(texts) if text))
    if asked is None:
        return "I only add."
    result = int(asked[1]) + int(asked[2])
    is_brief = any(word in text for text in texts for word in ("result only", "few words"))
    return str(result) if is_brief else f"Let me think. The sum is {result}, I believe."


def _text(content: Any) -> str:
    if isinstance(content, list):
        parts: list[dict[str, Any]] = content
        return "".join(str(part.get("text", "")) for part in parts)
    return str(content or "")


class Handler(BaseHTTPRequestHandler):
    """Answers requests for completions, streamed or not."""

    def do_GET(self) -> None:
        """`GET /v1/models`."""
        self._send("application/json", {"data": [{"id": "adder", "object": "model"}]})

    def do_POST(self) -> None:
        """`POST /v1/chat/completions`."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = answer(body["messages"])
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        head = {"id": "1", "created": 1, "model": "adder"}
        if not body.get("stream"):
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            self._send("application/json", whole)
            return
        head["object"] = "chat.completion.chunk"
        first = {"index": 0, "delta": {"role": "assistant", "content": text}}
        last = {"index": 0, "delta": {}, "finish_reason": "stop"}
        chunks = [
            {**head, "choices": [first]},
            {**head, "choices": [last]},
            {**head, "choices": [], "usage": usage},
        ]
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        self._write("text/event-stream", "".join([*lines, "data: [DONE]\n\n"]))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _send(self, kind: str, value: dict[str, Any]) -> None:
        self._write(kind, json.dumps(value))

    def _write(self, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8123
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()
