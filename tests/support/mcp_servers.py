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


def command(kind: str, folder: Path | str) -> tuple[str, ...]:
    """How to start one of them, which notes in a folder what happens to it."""
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
    tool("elicit"),
    tool("malformed"),
    tool("minus_32000"),
]

FORM: Json = {
    "message": "Which table?",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "seats": {"type": "integer", "description": "How many people"},
            "name": {"type": "string", "default": "Ada"},
            "outside": {"type": "boolean", "default": False},
        },
        "required": ["seats"],
    },
}


class Plain:
    """Answers as it should; its tools try all the kinds of answers."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def serve(self) -> None:
        for message in lines():
            method = message.get("method", "")
            if method == "notifications/cancelled":
                (self.folder / "cancelled").write_text(str(message["params"]["requestId"]))
            elif "id" in message and method:
                self.answer(message["id"], method, message.get("params") or {})
            elif "id" in message:
                said = message.get("error") or message.get("result")
                asked = int(message["id"].removeprefix("for-"))
                say({"id": asked, "result": text(json.dumps(said))})

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
            asked: Json = {"messages": [], "maxTokens": 10}
            say({"id": f"for-{id}", "method": "sampling/createMessage", "params": asked})
        elif name == "elicit":
            say({"id": f"for-{id}", "method": "elicitation/create", "params": FORM})
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


class Tasks(Plain):
    """Runs its tools as tasks of 2025-11-25: three polls, then the result has its own request."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.polls = 0
        self.asks = ""

    def initialize(self, params: Json) -> Json:
        found = super().initialize(params)
        found["capabilities"]["tasks"] = {"requests": {"tools": {"call": {}}}, "cancel": {}}
        return found

    def tools(self) -> list[Json]:
        names = ("work", "hang", "break", "plain")
        support = dict.fromkeys(names, "required") | {"plain": "optional"}
        return [tool(name, execution={"taskSupport": support[name]}) for name in names]

    def task(self, status: str) -> Json:
        return {
            "taskId": f"task-of-{self.asks}", "status": status, "ttl": 60_000, "pollInterval": 10,
            "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z",
            "statusMessage": f"poll {self.polls}",
        }  # fmt: skip

    def answer(self, id: Any, method: str, params: Json) -> None:
        if method == "tools/call" and "task" in params:
            self.asks, self.polls = params["name"], 0
            say({"id": id, "result": {"task": self.task("working")}})
        elif method == "tools/call":
            say({"id": id, "result": text("without a task")})
        elif method == "tasks/get":
            self.polls += 1
            done = self.polls >= 3 and self.asks != "hang"
            ended = "failed" if self.asks == "break" else "completed"
            say({"id": id, "result": self.task(ended if done else "working")})
        elif method == "tasks/result":
            failed = {"isError": True} if self.asks == "break" else {}
            say({"id": id, "result": {**text(f"{params['taskId']} is done"), **failed}})
        elif method == "tasks/cancel":
            (self.folder / "cancelled").write_text(params["taskId"])
            say({"id": id, "result": self.task("cancelled")})
        else:
            super().answer(id, method, params)


class Modern(Tasks):
    """The same in 2026-07-28: no handshake, tasks are an extension, a task can ask a person."""

    def answer(self, id: Any, method: str, params: Json) -> None:
        caching: Json = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        if method == "server/discover":
            about: Json = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            say({"id": id, "result": {**caching, **about}})
        elif method == "tools/list":
            tools = [tool(name) for name in ("work", "hang", "break", "ask")]
            say({"id": id, "result": {**caching, "tools": tools}})
        elif method == "tools/call":
            able: Json = params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
            assert "io.modelcontextprotocol/tasks" in able["extensions"], able
            self.asks, self.polls = params["name"], 0
            say({"id": id, "result": {"resultType": "task", **self.state("working")}})
        elif method == "tasks/get":
            self.polls += 1
            say({"id": id, "result": self.poll()})
        elif method == "tasks/update":
            self.asks = json.dumps(params["inputResponses"]["key"])
            say({"id": id, "result": {"resultType": "complete"}})
        elif method == "tasks/cancel":
            (self.folder / "cancelled").write_text(params["taskId"])
            say({"id": id, "result": {"resultType": "complete"}})
        else:
            say({"id": id, "error": {"code": -32601, "message": "Method not found"}})

    def state(self, status: str) -> Json:
        known = self.task(status)
        return {**known, "ttlMs": known.pop("ttl"), "pollIntervalMs": known.pop("pollInterval")}

    def poll(self) -> Json:
        plain: Json = {"resultType": "complete"}
        if self.polls < 3 or self.asks == "hang":
            return plain | self.state("working")
        if self.asks == "break":
            error = {"code": -32603, "message": "out of paper"}
            return plain | self.state("failed") | {"error": error}
        if self.asks == "ask":
            schema = {"type": "object", "properties": {"size": {"type": "integer"}}}
            params = {"mode": "form", "message": "How big?", "requestedSchema": schema}
            asked = {"key": {"method": "elicitation/create", "params": params}}
            return plain | self.state("input_required") | {"inputRequests": asked}
        done = {"resultType": "complete", **text(f"{self.asks} is done")}
        return plain | self.state("completed") | {"result": done}


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
    kinds = (Plain, Garbage, Changing, Huge, Stubborn, Endless, Tasks, Modern)
    for one in kinds:
        if one.__name__.lower() == kind:
            one(folder).serve()
            return
    {"silent": silent, "rubbish": rubbish, "dies": lambda: sys.exit("no licence")}[kind]()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
