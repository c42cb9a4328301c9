"""The floor: a bare asyncio loop that only (de)serialises with msgspec and calls the function.

Each turn encodes the whole history into a request, as a client without a cache does, and decodes
the reply and its arguments. No limits, no policy, no records, no errors.
"""

import clock


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


def build():
    import asyncio

    Call, Message, encode, reply, arguments = codec()

    async def add(asked) -> str:
        return str(clock.add_up(asked.a, asked.b))

    tools = {"add": add}

    async def model(script: clock.Script, request: bytes) -> bytes:
        if script.waits:
            await asyncio.sleep(0)
        calls = [Call(id, "add", text) for id, _, text in script.reply()]
        return encode(Message("assistant", "" if calls else "done", calls))

    async def answer(call):
        return Message("tool", await tools[call.name](arguments(call.arguments)), [], call.id)

    def prepare(script: clock.Script):
        async def start() -> str:
            history = [Message("user", "go")]
            while True:
                said = reply(await model(script, encode(history)))
                history.append(said)
                if not said.calls:
                    return said.text
                if len(said.calls) == 1:
                    results = [await answer(said.calls[0])]
                else:
                    results = await asyncio.gather(*map(answer, said.calls))
                history.extend(results)

        return start

    return prepare


if __name__ == "__main__":
    clock.main(build)
