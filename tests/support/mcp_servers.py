"""Small MCP servers for the tests, each a real process without any library; some misbehave.

Run as `python mcp_servers.py KIND [FOLDER]`.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Json = dict[str, Any]
PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000d49444154789c6360606060000000050001a5f64540"
        "0000000049454e44ae426082"
    )
).decode()


def command(kind: str, folder: Path | str = "") -> tuple[str, ...]:
    """How to start one of them."""
    return (sys.executable, "-I", __file__, kind, str(folder))


def say(message: Json) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(*parts: str) -> Json:
    return {"content": [{"type": "text", "text": part} for part in parts]}


def tool(name: str, properties: Json | None = None, **more: Any) -> Json:
    schema = {"type": "object", "properties": properties or {}}
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema, **more}


def lines() -> Iterable[Json]:
    for line in sys.stdin:
        yield json.loads(line)


PLAIN = [
    tool("echo", {"text": {"type": "string"}}, annotations={"readOnlyHint": True}),
    tool("fail"),
    tool("refuse"),
    tool("image"),
    tool("big_image"),
    tool("mixed"),
    tool("structured"),
    tool("big"),
    tool("env"),
    tool("crash"),
    tool("crash_reading", annotations={"readOnlyHint": True}),
    tool("slow"),
    tool("spawn", {"seconds": {"type": "string"}}),
    tool("ask"),
    tool("malformed"),
    tool("minus_32000"),
]


class Plain:
    """Answers as it should; its tools try all the kinds of answers."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder or ".")
        self.asked: Any = None

    def serve(self) -> None:
        for message in lines():
            method = message.get("method", "")
            if method == "notifications/cancelled":
                (self.folder / "cancelled").write_text(str(message["params"]["requestId"]))
            elif "id" in message and method:
                self.answer(message["id"], method, message.get("params") or {})
            elif "id" in message:
                said = message.get("error") or message.get("result")
                say({"id": self.asked, "result": text(json.dumps(said))})

    def answer(self, id: Any, method: str, params: Json) -> None:
        if method == "initialize":
            with (self.folder / "starts").open("a") as starts:
                starts.write(f"{os.getpid()}\n")
            say({"id": id, "result": self.initialize(params)})
        elif method == "tools/list":
            say({"id": id, "result": {"tools": self.tools()}})
        elif method == "tools/call":
            self.call(id, params["name"], params)
        else:
            say({"id": id, "error": {"code": -32601, "message": "Method not found"}})

    def initialize(self, params: Json) -> Json:
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "plain", "version": "1"},
        }

    def tools(self) -> list[Json]:
        return PLAIN

    def call(self, id: Any, name: str, params: Json) -> None:
        arguments: Json = params.get("arguments") or {}
        plain: dict[str, Callable[[], Json]] = {
            "echo": lambda: text(arguments.get("text", "")),
            "fail": lambda: {**text("the disk is full"), "isError": True},
            "image": lambda: {"content": [picture(PIXEL)]},
            "big_image": lambda: {"content": [picture("A" * (8 << 20))]},
            "mixed": mixed,
            "structured": lambda: {"content": [], "structuredContent": {"degrees": 21}},
            "big": lambda: text("a" * 100_000 + "z" * 100_000),
            "env": lambda: text(json.dumps(dict(os.environ))),
            "spawn": lambda: spawn(arguments["seconds"]),
        }
        if name in plain:
            say({"id": id, "result": plain[name]()})
        else:
            self.misbehave(id, name, params)

    def misbehave(self, id: Any, name: str, params: Json) -> None:
        if name.startswith("crash"):
            sys.stderr.write("out of cheese\n")
            sys.stderr.flush()
            os._exit(3)
        if name == "slow":
            token = params["_meta"]["progressToken"]
            progress = {"progressToken": token, "progress": 1, "total": 3, "message": "one\x1b[2J"}
            say({"method": "notifications/progress", "params": progress})
        elif name == "ask":
            self.asked = id
            asked: Json = {"messages": [], "maxTokens": 10}
            say({"id": "from-server", "method": "sampling/createMessage", "params": asked})
        elif name == "malformed":
            say({"id": id, "result": {"content": "not a list"}})
        elif name == "minus_32000":
            say({"id": id, "error": {"code": -32000, "message": "out of paper"}})
        else:
            say({"id": id, "error": {"code": -32602, "message": f"no: {name}"}})


def picture(data: str) -> Json:
    return {"type": "image", "mimeType": "image/png", "data": data}


def mixed() -> Json:
    note = {"uri": "file:///note.txt", "mimeType": "text/plain", "text": "a note"}
    blob = {"uri": "file:///x.bin", "mimeType": "application/x", "blob": "AAAA"}
    link = {"type": "resource_link", "name": "more", "uri": "file:///more.txt"}
    sound = {"type": "audio", "mimeType": "audio/wav", "data": "AAAA"}
    resources = [{"type": "resource", "resource": one} for one in (note, blob)]
    return {"content": [{"type": "text", "text": "hello"}, link, sound, *resources]}


def spawn(seconds: str) -> Json:
    """Leave a grandchild behind, in a session of its own."""
    script = ["sh", "-c", f"setsid sleep {seconds} & setsid sleep {seconds} &"]
    subprocess.run(script, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return text("spawned")


class Garbage(Plain):
    """Prints things before each message."""

    def answer(self, id: Any, method: str, params: Json) -> None:
        sys.stdout.write("Listening...\n\n{not json\n[1, 2]\n\x00\xff\n")
        super().answer(id, method, params)


class Changing(Plain):
    """Lists what a file says, and says when it was told to say so."""

    def tools(self) -> list[Json]:
        return json.loads((self.folder / "tools.json").read_text())

    def call(self, id: Any, name: str, params: Json) -> None:
        if name == "change":
            new = params["arguments"]["tools"]
            (self.folder / "tools.json").write_text(json.dumps(new))
            say({"method": "notifications/tools/list_changed"})
            say({"id": id, "result": text("changed")})
        else:
            super().call(id, name, params)


class Huge(Plain):
    """Answers a call with more than anybody takes."""

    def misbehave(self, id: Any, name: str, params: Json) -> None:
        say({"id": id, "result": text("x" * (24 << 20))})


class Stubborn(Plain):
    """Does not end when it is told to, nor when it is signalled."""

    def serve(self) -> None:
        import signal

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        super().serve()
        while True:
            signal.pause()


class Endless(Plain):
    """Lists its tools for ever: each page has another one after it."""

    def answer(self, id: Any, method: str, params: Json) -> None:
        if method == "tools/list":
            say({"id": id, "result": {"tools": [tool("echo")], "nextCursor": f"{id}"}})
        else:
            super().answer(id, method, params)


def silent() -> None:
    """Read everything and answer nothing."""
    for _ in sys.stdin:
        pass


def rubbish() -> None:
    """Write rubbish for ever."""
    try:
        while True:
            sys.stdout.write("la la la\n")
    except BrokenPipeError:
        os._exit(0)


def main(kind: str, folder: str) -> None:
    kinds = (Plain, Garbage, Changing, Huge, Stubborn, Endless)
    for one in kinds:
        if one.__name__.lower() == kind:
            one(folder).serve()
            return
    {"silent": silent, "rubbish": rubbish, "dies": lambda: sys.exit("no licence")}[kind]()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
