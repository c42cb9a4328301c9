"""The public models of Open Responses judge what an agent sends: each response, each event."""

import json
import sys
import urllib.request
from typing import Any

from openresponses_types import types

URL, TOKEN = sys.argv[1:3]
EVENTS = {
    next(iter(kind.model_fields["type"].annotation)).value: kind
    for name, kind in vars(types).items()
    if name.endswith("StreamingEvent")
}
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
}
CALL = 'Call get_weather {"location": "Bern"}'


def user(content: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": content}


def ask(**body: Any) -> Any:
    request = urllib.request.Request(
        f"{URL}/v1/responses",
        json.dumps({"model": "lead", **body}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    if not body.get("stream"):
        found = json.loads(text)
        types.ResponseResource.model_validate(found)
        return found
    events = [
        json.loads(line.removeprefix("data: "))
        for line in text.splitlines()
        if line.startswith("data: {")
    ]
    for event in events:
        EVENTS[event["type"]].model_validate(event)
    types.ResponseResource.model_validate(events[-1]["response"])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def basic_response() -> None:
    found = ask(input=[user("Say hello in three words.")])
    assert found["status"] == "completed" and found["output"], found


def streaming_response() -> None:
    events = ask(input=[user("Say one two three")], stream=True)
    assert events[-1]["type"] == "response.completed"


def system_prompt() -> None:
    system = {"type": "message", "role": "system", "content": "You are a pirate."}
    assert ask(input=[system, user("Say ahoy")])["status"] == "completed"


def tool_calling() -> None:
    found = ask(input=[user(CALL)], tools=[TOOL])
    assert [item["type"] for item in found["output"]] == ["function_call"], found["output"]


def tool_calling_streaming() -> None:
    kinds = [event["type"] for event in ask(input=[user(CALL)], tools=[TOOL], stream=True)]
    for part in ("output_item.added", "function_call_arguments.delta", "output_item.done"):
        assert f"response.{part}" in kinds, kinds


def image_input() -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}
    found = ask(input=[user([{"type": "input_text", "text": "Say a dot"}, image])])
    assert found["status"] == "completed"


def multi_turn() -> None:
    before = {"type": "message", "role": "assistant", "content": "Hello Alice!"}
    found = ask(input=[user("My name is Alice."), before, user("Say Alice")])
    assert found["status"] == "completed"


CHECKS = (
    basic_response,
    streaming_response,
    system_prompt,
    tool_calling,
    tool_calling_streaming,
    image_input,
    multi_turn,
)
problems: dict[str, str] = {}
for check in CHECKS:
    try:
        check()
        problems[check.__name__] = ""
    except Exception as error:
        problems[check.__name__] = f"{type(error).__name__}: {error}"[:2_000]
sys.stdout.write(json.dumps(problems) + "\n")
