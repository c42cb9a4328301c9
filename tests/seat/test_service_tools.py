"""Skills, own tools and MCP servers of the machine that runs `evoclaw up`, in every interface."""

from __future__ import annotations

import json
import os
import signal
import sys
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path
from random import Random

from PIL import Image

from evoclaw.cli import exits
from evoclaw.core.messages import JSON
from evoclaw.executors.browser.processes import find_browser
from evoclaw.executors.browser.session_pages import NO_PAGE_MESSAGE
from evoclaw.executors.mcp.executor import McpExecutor
from evoclaw.executors.mcp.offers import McpServer, NoPins
from evoclaw.tools.catalogue import CATALOGUE
from tests.support.mcp_servers import command
from tests.support.seat import Seat, seat
from tests.support.service import Client
from tests.support.skills import manifest, write_skill
from tests.support.terminal import terminal
from tests.support.up_process import (
    PATIENCE,
    SETTINGS,
    UpProcess,
    ok,
    start_run,
    up_process,
    wait_for_state,
)
from tests.support.waiting import until
from tests.support.web_pages import answer, serve_pages

COUNT = """#!/bin/sh
wc -l < "$PWD/notes.txt"
"""
DICE = '''from evoclaw import tool


@tool("dice", effect="read", resources=())
def double(number: int) -> str:
    """Say what twice a number is."""
    return f"twice is {2 * number}"
'''
SIZE = '''from evoclaw import tool
from evoclaw.core.ops import FileOps


@tool("file_read", effect="read")
async def size_of(files: FileOps, path: str) -> str:
    """Say how long a file is."""
    return f"{len(await files.read(path))} bytes"
'''
PEEK = '''from evoclaw import tool


@tool("probe", effect="read", isolated=True)
def peek(path: str) -> str:
    """Read a file."""
    with open(path) as file:
        return file.read()
'''
WORKFLOW = """
[[steps]]
name = "twice"
kind = "tool"
tool = "double"
arguments = { number = 4 }

[[steps]]
name = "said"
kind = "tool"
tool = "plain__echo"
arguments = { text = "{{ steps.twice.output.text }}" }
"""


def mcp_table(kind: str, folder: Path) -> str:
    """The settings of a server whose hints are trusted."""
    return (
        f'\n[[mcp]]\nname = "{kind}"\ncommand = {json.dumps(command(kind, folder))}\n'
        "trust_hints = true\n"
    )


def put_tool(up: UpProcess, name: str, text: str) -> None:
    """Write a file of own tools, as an editor does."""
    folder = up.home / "tools"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o600)


def put_skill(up: UpProcess, name: str, tool: str, program: str) -> None:
    """Write a skill with one program that only reads."""
    text = manifest(tool, extra='effect = "read"')
    write_skill(up.home / "skills", name, skill_toml=text, run=program)


async def tool_names(client: Client) -> list[str]:
    """The tools that the service lists."""
    return [tool["name"] for tool in ok(await client.get("/v1/tools"))["items"]]


async def ask(place: Seat, client: Client, script: str, **more: JSON) -> str:
    """Run a script over the API; everything that the model was sent last."""
    run = await start_run(client, script, **more)
    await wait_for_state(client, run)
    return json.dumps(place.up.models.asked[-1].body["messages"])


async def test_a_service_offers_skills_own_tools_and_mcp_servers_in_every_interface(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, SETTINGS + mcp_table("plain", tmp_path), edge=True) as place:
        up = place.up
        client = await up.wait_ready()
        await up.wait_online(client)
        (up.workspace / "notes.txt").write_text("a\nb\nc\n")

        # Nothing of it existed when the service started.
        put_tool(up, "dice.py", DICE)
        put_tool(up, "size.py", SIZE)
        put_skill(up, "notes", "count_notes", COUNT)
        approved = await place.type("mcp", "approve", "plain")
        assert approved.code == exits.OK, approved.err
        wanted = {"double", "size_of", "count_notes", "plain__echo", "bash"}

        async def offered() -> bool:
            return wanted <= set(await tool_names(client))

        await until(offered, PATIENCE, "the tools are offered")

        # Over the API: an own tool, a skill's program in the workspace, an MCP server, an edge.
        script = (
            'call double {"number": 21} && call size_of {"path": "notes.txt"} && '
            'call count_notes {} && call plain__echo {"text": "from mcp"} && '
            'call bash {"command": "cat notes.txt | tail -1"}\nsay done'
        )
        up.models.scripts["use them all"] = script
        seen = await ask(place, client, "use them all")
        for text in ("twice is 42", "6 bytes", '"3"', "from mcp", '"c"'):
            assert text in seen, (text, seen)

        # In the chat, and over the OpenAI endpoint.
        typed = await place.type("chat", stdin=b"use them all\n")
        assert typed.code == exits.OK, typed.err
        assert "twice is 42" in json.dumps(up.models.asked[-1].body)
        answer = await client.post(
            "/v1/chat/completions",
            {"model": "evoclaw", "messages": [{"role": "user", "content": "use them all"}]},
        )
        assert ok(answer)["choices"][0]["message"]["content"] == "done"
        assert "from mcp" in json.dumps(up.models.asked[-1].body)

        # As steps of a workflow, without a model.
        (up.home / "workflows").mkdir(exist_ok=True)
        (up.home / "workflows" / "twice.toml").write_text(WORKFLOW)
        started = await place.type("workflows", "start", "twice", "--json")
        assert started.code == exits.OK, started.err
        workflow = json.loads(started.out)["id"]

        async def ended() -> bool:
            shown = await place.type("workflows", "show", workflow, "--json")
            return shown.out.count("twice is 8") >= 2

        await until(ended, PATIENCE, "both steps of the workflow ended")

        # For MCP clients.
        serve = (sys.executable, "-m", "evoclaw", "mcp", "serve", "--yes")
        served = McpServer("served", serve, env=up.shell.environment, cwd=str(up.workspace))
        async with McpExecutor(served, NoPins()) as executor:
            names = {tool.name.removeprefix("served__") for tool in executor.tools()}
        assert names >= {"double", "count_notes", "plain__echo"}, executor.problem

        # Each call is signed and audited on this machine.
        run = await start_run(client, "use them all")
        await wait_for_state(client, run)
        receipts = json.dumps(ok(await client.get(f"/v1/runs/{run}/receipts")))
        audit = await place.type("audit", "search", "--run", run, "--json")
        for name in ("double", "count_notes", "plain__echo"):
            assert name in receipts
            assert name in audit.out, audit.err


async def test_another_tenant_gets_own_tools_only_from_an_agent_whose_definition_names_them(
    tmp_path: Path,
) -> None:
    calculator = '[[agents]]\nid = "calculator"\ncapabilities = ["*"]\ntools = ["double"]\n'
    async with seat(tmp_path, f"{SETTINGS}\n{calculator}") as place:
        client = await place.up.wait_ready()
        put_tool(place.up, "dice.py", DICE)
        token = await place.type(
            *("token", "new", "--tenant", "acme", "--name", "acme"),
            *("--scope", "tools:read", "--scope", "tools:execute"),
        )
        acme = Client(client.http, client.url, token.out.split()[-1])

        async def double(caller: Client, **more: JSON) -> tuple[JSON, JSON]:
            body: JSON = {"arguments": {"number": 3}, **more}
            answer = ok(await caller.post("/v1/tools/double/call", body))
            return answer["error"], answer["text"]

        assert await double(client) == (None, "twice is 6")
        assert "double" in await tool_names(client)
        refused, _ = await double(acme)
        assert refused == "not_found"
        assert "double" not in await tool_names(acme)
        assert await double(acme, agent="calculator") == (None, "twice is 6")


async def test_changed_files_settings_and_approvals_take_effect_without_a_restart(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path) as place:
        up = place.up
        client = await up.wait_ready()
        put_tool(up, "dice.py", DICE)
        up.models.scripts["double it"] = 'call double {"number": 3}\nsay done'
        assert "twice is 6" in await ask(place, client, "double it")
        put_tool(up, "dice.py", DICE.replace("twice is", "two times is"))
        assert "two times is 6" in await ask(place, client, "double it")

        # An isolated tool runs in a sandbox, which does not show the data folder.
        put_tool(up, "peek.py", PEEK)
        shown = await place.type("tools")
        assert "peek             (isolated) Read a file." in shown.out, shown.err

        async def isolated() -> bool:
            items = ok(await client.get("/v1/tools"))["items"]
            return any(tool["name"] == "peek" and tool["isolated"] for tool in items)

        await until(isolated, PATIENCE, "the isolated tool is offered")
        login = str(up.home / "api.json")
        up.models.scripts["peek"] = f'call peek {{"path": "{login}"}}\nsay done'
        told = await ask(place, client, "peek")
        assert "No such file" in told
        assert client.token not in told

        # A broken file is named, and the others stay.
        put_tool(up, "broken.py", "def oops(:\n")
        assert "two times is 6" in await ask(place, client, "double it")
        found = ok(await client.get("/v1/tools"))
        assert any("SyntaxError" in problem["why"] for problem in found["problems"])
        token = await place.type(
            "token", "new", "--tenant", "acme", "--name", "acme", "--scope", "tools:read"
        )
        acme = Client(client.http, client.url, token.out.split()[-1])
        listed = ok(await acme.get("/v1/tools"))
        assert listed["problems"] == [], "they name files of the operator"

        # A skill's tool takes the name of an own tool, and it says so.
        put_skill(up, "better", "double", "#!/bin/sh\necho by the skill\n")

        async def replaced() -> bool:
            return "by the skill" in await ask(place, client, "call double {}\nsay done")

        await until(replaced, PATIENCE, "the skill's program answers")
        problems = ok(await client.get("/v1/tools"))["problems"]
        assert any(problem["name"] == "double" for problem in problems)

        # A server is added and removed by a reload of the settings.
        up.configure(SETTINGS + mcp_table("plain", tmp_path))
        up.signal(signal.SIGHUP)

        async def seen() -> bool:
            listed = await place.type("mcp", "list")
            return "plain__echo" in listed.out

        await until(seen, PATIENCE, "the service connected to the server")
        assert "plain__echo" not in await tool_names(client)
        await place.type("mcp", "approve", "plain", "plain__echo")

        async def offered() -> bool:
            return "plain__echo" in await tool_names(client)

        await until(offered, PATIENCE, "the approved tool is offered")
        assert "plain__fail" not in await tool_names(client)
        up.configure()
        up.signal(signal.SIGHUP)

        async def removed() -> bool:
            return not await offered()

        await until(removed, PATIENCE, "the tool of the removed server is gone")


SEES_IMAGES = SETTINGS + 'model = "vllm/qwen2.5-vl-scripted"\n'
HITS = {"results": [{"url": "https://example.org/a", "title": "Found it", "content": "about a"}]}


def noise(width: int, height: int) -> bytes:
    """A picture that does not compress, and so is too large for one message."""
    file = BytesIO()
    Image.frombytes("RGB", (width, height), Random(1).randbytes(width * height * 3)).save(
        file, "PNG"
    )
    return file.getvalue()


def images_sent(up: UpProcess) -> list[str]:
    """The images in the last request to the model, as data URLs."""
    parts = [
        part
        for message in up.models.asked[-1].body["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


async def test_search_browser_and_images_work_in_the_service_or_are_listed_with_the_reason(
    tmp_path: Path,
) -> None:
    page = answer(json.dumps(HITS), "Content-Type: application/json")
    async with serve_pages({"/search": page}) as engine, up_process(tmp_path) as up:
        place = Seat(up, tmp_path)
        up.configure(SEES_IMAGES)
        up.shell.env["SEARXNG_URL"] = engine.url("/")
        client = await up.start(edge=True)
        await up.wait_online(client)
        (up.workspace / "photo.png").write_bytes(noise(500, 400))

        up.models.scripts["search"] = 'call websearch {"query": "a"}\nsay done'
        assert "Found it" in await ask(place, client, "search")
        up.models.scripts["look"] = 'call image {"path": "photo.png"}\nsay done'
        await ask(place, client, "look")
        (url,) = images_sent(up)
        assert Image.open(BytesIO(b64decode(url.partition(",")[2]))).size == (500, 400)
        up.models.scripts["browse"] = 'call browser {"action": "snapshot"}\nsay done'
        found = ok(await client.get("/v1/tools"))
        why = {tool["name"]: tool["why"] for tool in found["absent"]}
        if isinstance(program := find_browser("", env=os.environ), str):
            assert why["browser"] == program
        else:
            assert NO_PAGE_MESSAGE in await ask(place, client, "browse")

        # Every built-in tool is offered or has a reason.
        listed = {tool["name"] for tool in found["items"]} | why.keys()
        assert listed >= set(CATALOGUE)

        # Without a search engine, and with a model that sees nothing.
        await up.stop()
        del up.shell.env["SEARXNG_URL"]
        up.configure()
        client = await up.start(edge=True)
        await up.wait_online(client)
        absent = {tool["name"]: tool["why"] for tool in ok(await client.get("/v1/tools"))["absent"]}
        assert "SEARXNG_URL" in absent["websearch"]
        assert "does not read images" in absent["image"]


async def test_a_picture_of_the_user_reaches_the_model_from_api_chat_and_openai_clients(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, SEES_IMAGES) as place:
        up = place.up
        client = await up.wait_ready()
        photo = noise(40, 30)
        (up.workspace / "my photo.png").write_bytes(noise(900, 600))
        image: JSON = {"media_type": "image/png", "data": b64encode(photo).decode()}

        # Over the API: in a new session, and in an existing one.
        run = await start_run(client, "say a tiny one", images=[image])
        session = (await wait_for_state(client, run))["session_id"]
        assert images_sent(up) == [f"data:image/png;base64,{image['data']}"]
        path = f"/v1/sessions/{session}/messages"
        sent = ok(await client.post(path, {"message": "say another", "images": [image]}))
        await wait_for_state(client, sent["run_id"])
        assert len(images_sent(up)) == 2, "the earlier one is in the history"
        for wrong in ({**image, "data": "AAAA"}, {**image, "data": "?"}):
            refused = await client.post("/v1/runs", {"message": "say no", "images": [wrong]})
            assert (refused.status, refused.json["error"]["code"]) == (400, "invalid_image")
        blind: JSON = {"message": "say no", "images": [image], "model": "vllm/qwen3-text"}
        refused = await client.post("/v1/runs", blind)
        assert refused.status == 400
        assert "does not read images" in refused.json["error"]["message"]

        # An OpenAI client that continues a session.
        url = {"url": f"data:image/png;base64,{image['data']}"}
        content = [{"type": "text", "text": "say seen"}, {"type": "image_url", "image_url": url}]
        body: JSON = {"model": "evoclaw", "messages": [{"role": "user", "content": content}]}
        header = {"X-EvoClaw-Session": session}
        assert ok(await client.post("/v1/chat/completions", body, **header))
        assert len(images_sent(up)) == 3

        # In the chat: a large file with a space in its name, made small enough to send.
        async with terminal(up.shell, "chat") as here:
            await here.send_line("/attach no.png")
            await here.expect("cannot read no.png")
            await here.send_line("/attach 'my photo.png'")
            await here.expect("attached to your next message: my photo.png")
            await here.send_line("say what a view")
            await here.send_line("/history")  # after the prompt: the run has ended
            await here.expect("[an image (image/")
            (attached,) = images_sent(up)
            await here.send_line("say and now without")
            await here.send_line("/quit")
            assert await here.wait_exit() == exits.OK
        assert images_sent(up) == [attached], "it is sent once, and stays in the history"
        shown = Image.open(BytesIO(b64decode(attached.partition(",")[2])))
        assert (shown.format, shown.width) == ("JPEG", 768), "scaled down"


async def test_the_questions_of_an_mcp_server_are_answered_by_the_user_of_a_run(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, SETTINGS + mcp_table("plain", tmp_path), edge=True) as place:
        up = place.up
        client = await up.wait_ready()
        await up.wait_online(client)
        assert (await place.type("mcp", "approve", "plain")).code == exits.OK

        async def offered() -> bool:
            return "plain__elicit" in await tool_names(client)

        await until(offered, PATIENCE, "the tool is offered")
        run_id = await start_run(client, "call plain__elicit {}\nsay booked")
        answered: list[str] = []
        new: list[str] = []

        async def is_asked() -> bool:
            found = ok(await client.get("/v1/questions"))["items"]
            new[:] = [one["id"] for one in found if one["id"] not in answered]
            return bool(new)

        default: JSON = {"chosen": ["Use the default: Ada"]}
        for given in ({"text": "2"}, default, {"chosen": ["yes"]}):
            await until(is_asked, PATIENCE, "the user is asked")
            answered += new
            ok(await client.post(f"/v1/runs/{run_id}/answer", {"question_id": new[0], **given}))
        assert (await wait_for_state(client, run_id))["text"] == "booked"
        told = json.dumps(up.models.asked[-1].body)
        assert "seats" in told and "outside" in told
