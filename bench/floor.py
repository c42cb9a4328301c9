"""The floor: a bare asyncio loop that only encodes and decodes with msgspec and calls the function.

Each turn encodes the whole history into a request, as a client without a cache does, encodes and
decodes the reply, and decodes its arguments. No limits, no policy, no records, no errors.
"""

from contextlib import asynccontextmanager

import loop_harness


def codec():
    import msgspec

    class Call(msgspec.Struct):
        id: str
        name: str
        arguments: str

    class Add(msgspec.Struct):
        a: int
        b: int

    class Message(msgspec.Struct, omit_defaults=True):
        role: str
        text: str = ""
        calls: list[Call] = []
        call_id: str = ""

    encode = msgspec.json.Encoder().encode
    reply = msgspec.json.Decoder(Message).decode
    arguments = msgspec.json.Decoder(Add).decode
    return Call, Message, encode, reply, arguments


def keep_nothing(history, encode) -> None:
    pass


def everything(history):
    return history


def build(keep=keep_nothing, told=everything):
    """`keep` receives the history each turn; `told` selects the part that a request contains."""
    import asyncio

    Call, Message, encode, reply, arguments = codec()

    async def add(asked) -> str:
        return str(loop_harness.add_up(asked.a, asked.b))

    tools = {"add": add}

    async def model(script: loop_harness.Script, request: bytes) -> bytes:
        if script.waits:
            await asyncio.sleep(0)
        calls = [Call(id, "add", text) for id, _, text in script.reply()]
        return encode(Message("assistant", "" if calls else "done", calls))

    async def answer(call):
        return Message("tool", await tools[call.name](arguments(call.arguments)), [], call.id)

    def prepare(script: loop_harness.Script):
        async def start() -> str:
            history = [Message("user", "go")]
            while True:
                said = reply(await model(script, encode(told(history))))
                history.append(said)
                keep(history, encode)
                if not said.calls:
                    return said.text
                if len(said.calls) == 1:
                    results = [await answer(said.calls[0])]
                else:
                    results = await asyncio.gather(*map(answer, said.calls))
                history.extend(results)

        return start

    return prepare


def describe():
    import inspect

    import msgspec

    def make(function):
        parameters = inspect.signature(function, eval_str=True).parameters.values()
        fields = [
            (one.name, one.annotation)
            if one.default is one.empty
            else (one.name, one.annotation, one.default)
            for one in parameters
        ]
        return msgspec.json.schema(msgspec.defstruct(function.__name__, fields, kw_only=True))

    return make


@asynccontextmanager
async def stored(folder: str):
    """Insert one row for each new message, with one commit per turn, before its calls."""
    import sqlite3

    database = sqlite3.connect(f"{folder}/floor.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE said (run INTEGER, number INTEGER, message BLOB)")
    count, run = 0, 0

    def keep(history, encode) -> None:
        nonlocal count, run
        if len(history) <= count:
            count, run = 0, run + 1
        new = [(run, number, encode(history[number])) for number in range(count, len(history))]
        database.execute("BEGIN")
        database.executemany("INSERT INTO said VALUES (?, ?, ?)", new)
        database.execute("COMMIT")
        count = len(history)

    async def kept() -> int:
        return database.execute("SELECT count(*) FROM said WHERE run = ?", (run,)).fetchone()[0]

    yield build(keep), kept
    database.close()


if __name__ == "__main__":
    loop_harness.main(build, describe, stored)
