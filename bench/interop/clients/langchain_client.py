"""LangChain against an agent; prints what is wrong with each check as one JSON object."""

import json
import sys
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

URL, TOKEN = sys.argv[1:3]
CITY = '{"name": "Bern", "people": 134000}'


class City(BaseModel):
    """A city."""

    name: str
    people: int


@tool
def weather(town: str) -> str:
    """The weather in a town."""
    return f"rain in {town}"


def text(model: Any) -> None:
    assert model.invoke("Say It rains.").text == "It rains."


def any_tool(model: Any) -> None:
    bound = model.bind_tools([weather], tool_choice="any")
    found = bound.invoke('Call weather {"town": "Bern"}')
    assert found.tool_calls[0]["args"] == {"town": "Bern"}, found


def tool_loop(model: Any) -> None:
    bound = model.bind_tools([weather])
    talk: list[Any] = [HumanMessage('Call weather {"town": "Bern"}')]
    asked = bound.invoke(talk)
    (call,) = asked.tool_calls
    talk += [asked, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]
    assert bound.invoke(talk).text == "The result is rain in Bern"


def structured_by_a_named_tool(model: Any) -> None:
    bound = model.with_structured_output(City, method="function_calling")
    assert bound.invoke(f"Call City {CITY}") == City(name="Bern", people=134000)


def structured_by_a_schema(model: Any) -> None:
    bound = model.with_structured_output(City, method="json_schema")
    assert bound.invoke(f"Say {CITY}") == City(name="Bern", people=134000)


def streamed_text(model: Any) -> None:
    assert "".join(chunk.text for chunk in model.stream("Say It rains.")) == "It rains."


def stop_text(model: Any) -> None:
    assert model.invoke("Say one END two", stop=["END"]).text == "one "


CHECKS = [
    text,
    any_tool,
    tool_loop,
    structured_by_a_named_tool,
    structured_by_a_schema,
    streamed_text,
    stop_text,
]
problems: dict[str, str] = {}
for responses in (False, True):
    model = ChatOpenAI(
        base_url=f"{URL}/v1",
        api_key=SecretStr(TOKEN),
        model="lead",
        max_retries=0,
        use_responses_api=responses,
    )
    for check in CHECKS:
        if responses and check is stop_text:
            continue  # the Responses API has no `stop`
        name = f"{'responses' if responses else 'chat'}: {check.__name__}"
        try:
            check(model)
            problems[name] = ""
        except Exception as error:
            problems[name] = f"{type(error).__name__}: {error}"
sys.stdout.write(json.dumps(problems) + "\n")
