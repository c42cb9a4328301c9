"""`evoclaw up` and everything typed beside it, as processes."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import tomllib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from evoclaw.cli import exits
from evoclaw.config.agent_toml import machine_name
from tests.support.certificates import make_certificates
from tests.support.command_line import Shell, reply, shell
from tests.support.gguf_files import gguf
from tests.support.waiting import until

PATIENCE = 60.0
"""Seconds after which a slow machine is a broken one."""
SILENCE = 150.0
"""Seconds after which an edge that said nothing is offline in any case, and some more."""


class Up:
    """A running `evoclaw up`, and what it said so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = ""

    async def says(self, text: str, seconds: float = PATIENCE) -> None:
        assert self.process.stderr is not None
        try:
            async with asyncio.timeout(seconds):
                while text not in self.said:
                    line = await self.process.stderr.readline()
                    assert line, f"it ended, having said: {self.said}"
                    self.said += line.decode()
        except TimeoutError:
            pytest.fail(f"it did not say {text!r} within {seconds:g} s, but: {self.said}")


@asynccontextmanager
async def running(here: Shell, *arguments: str) -> AsyncGenerator[Up]:
    process = await here.start(*arguments, stdout=asyncio.subprocess.DEVNULL)
    try:
        yield Up(process)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            _, rest = await process.communicate()
        assert b"Traceback" not in rest, rest.decode()


async def test_one_up_process_runs_a_broker_an_orchestrator_and_an_edge(
    tmp_path: Path,
) -> None:
    task = reply("", ("bash", {"command": "echo over there > proof; cat proof"}))
    answers = (task, reply("It says: over there."), reply("Nothing."))
    async with shell(tmp_path, *answers) as here:
        async with running(
            here, "up", "--api-port", "0", "--name", "house", "--folder", str(here.workspace)
        ) as up:
            await up.says("edge house: online")
            pinged, listed = await asyncio.gather(
                here.type("ping", "house", "--json"), here.type("tools", "house")
            )
            ran = await here.type("run", "--on", "house", "--yes", "make a file")
            few = await here.type("run", "--json", "--on", "house", "--tools", "read,glob", "look")
            wrong = await here.type("run", "--on", "house", "--tools", "reed", "look")
            agents = await here.type("edges", "--json")
        (offered,) = [
            event["tools"]
            for event in (json.loads(line)["event"] for line in few.out.splitlines())
            if event["type"] == "tools_changed"
        ]
        assert {tool["name"] for tool in offered} == {"read", "glob"}
        assert (wrong.code, "unknown tool 'reed'" in wrong.err) == (exits.MISUSED, True)
        assert (pinged.code, json.loads(pinged.out)["pong"]) == (exits.OK, True)
        assert "bash" in listed.out
        assert ran.code == exits.OK, ran.err
        assert "It says: over there." in ran.out
        assert (here.workspace / "proof").read_text() == "over there\n"
        (row,) = json.loads(agents.out)
        assert (row["agent"], row["online"], row["state"]) == ("house", True, "approved")
        assert up.process.returncode == exits.OK


async def test_a_device_joins_with_a_one_time_token_and_can_be_revoked(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path) as here, running(here, "up", "--api-port", "0", "--no-edge") as up:
        await up.says("broker on")
        line = (await here.type("edges", "invite", "pi")).out.split()
        device = replace(here, home=tmp_path / "pi", workspace=tmp_path / "pi")
        device.home.mkdir()
        joined = await device.type(*line[1:], "--capabilities", "shell")
        assert joined.code == exits.OK, joined.err
        again = await device.type(*line[1:], "--config", "second.toml")
        assert again.code == exits.MISUSED
        # Refused by the broker, or by the orchestrator if the account is not changed yet.
        assert "a new one" in again.err
        assert not (device.workspace / "second.toml").exists()
        async with running(device, "edge"):
            await up.says("edge pi: online")
            twin = await device.type("edge")
            assert (twin.code, "uses the data folder" in twin.err) == (exits.MISUSED, True)
            shown = await here.type("edges", "show", "pi", "--json")
            assert json.loads(shown.out)["approved"] == ["artifact", "bash"]
            assert (await here.type("edges", "revoke", "pi")).code == exits.OK
            await up.says("edge pi: offline")
        assert (await here.type("edges", "show", "pi")).out.startswith("pi: revoked")
        key = (await here.type("edges", "key")).out.strip()
        assert tomllib.loads((device.workspace / "agent.toml").read_text())[
            "orchestrator_keys"
        ] == [key]
        copied = here.workspace / "copied"
        copied.write_bytes((here.home / ".evoclaw" / "orchestrator.key").read_bytes())
        copied.chmod(0o600)
        assert (await here.type("edges", "key", "--file", str(copied))).out.strip() == key


@pytest.mark.slow
async def test_tools_that_a_device_adds_later_need_approval(tmp_path: Path) -> None:
    async with shell(tmp_path) as here, running(here, "up", "--api-port", "0", "--no-edge") as up:
        await up.says("broker on")
        told = (await here.type("edges", "invite", "pi", "--qr")).err
        assert told.count("▀") > 100, "the link as a picture"
        link = shlex.split(told.partition("with a link: ")[2].partition("\n")[0])
        device = replace(here, home=tmp_path / "pi", workspace=tmp_path / "pi")
        device.home.mkdir()
        joined = await device.type(*link[1:], "--capabilities", "file_read")
        assert joined.code == exits.OK, joined.err
        async with running(device, "edge"):
            await up.says("edge pi: online")
            assert "bash" not in (await here.type("tools", "pi")).out
        await up.says("edge pi: offline", SILENCE)
        settings = device.workspace / "agent.toml"
        settings.write_text(settings.read_text().replace('["file_read"]', '["*"]'))
        up.said = ""
        async with running(device, "edge"):
            await up.says("edge pi: online")
            grown = await here.type("tools", "pi")
            assert "not approved: apply_patch, bash, " in grown.out
            assert "read " in grown.out
            assert (await here.type("edges", "approve", "pi")).code == exits.OK
            assert "bash" in (await here.type("tools", "pi")).out


@pytest.mark.slow
async def test_broker_join_and_ping_work_over_tls(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    cert, key = str(files.server_cert), str(files.server_key)
    tls = ("--cert", cert, "--key", key, "--ca-file", str(files.ca))
    async with (
        shell(tmp_path) as here,
        running(here, "up", "--api-port", "0", "--name", "house", *tls) as up,
    ):
        await up.says("edge house: online")
        assert "broker on mqtts://" in up.said
        line = (await here.type("edges", "invite", "pi")).out.split()
        device = replace(here, home=tmp_path / "pi", workspace=tmp_path / "pi")
        device.home.mkdir()
        joined = await device.type(*line[1:], "--ca-file", str(files.ca))
        assert joined.code == exits.OK, joined.err
        async with running(device, "edge"):
            await up.says("edge pi: online")
            assert (await here.type("ping", "pi")).code == exits.OK


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        (("ping", "pi"), "start one with `evoclaw up`"),
        (("edges", "invite", "pi"), "the key that `evoclaw edges key` prints"),
        (("edges", "show", "pi"), "unknown edge 'pi'"),
        (("edges", "approve", "pi"), "unknown edge 'pi'"),
        (("edges", "key"), "orchestrator.key does not exist; the first `evoclaw up` creates it"),
        (("edges", "key", "--file", "typo"), "the key typo does not exist"),
        (("edge", "--config", "nowhere.toml"), "does not exist"),
        (("edge", "join", "mqtt://127.0.0.1:1", "--token", "nonsense"), "the token is not valid"),
        (("edge", "join", "http://x", "--token", "pi.x"), "must have the form mqtt://"),
        (("edge", "join", "mqtt://127.0.0.1:1"), "add --token TOKEN, or use the link"),
        (("edge", "join", "evoclaw://join?url=x"), "this is not a complete invitation"),
        (("edge", "join", "evoclaw://join?url=x", "--token", "pi.x"), "omit --token"),
        (("up", "--cert", "x.pem"), "--cert and --key must be used together"),
        (("up", "--host", "192.0.2.1"), "no free port was found on 192.0.2.1"),
    ],
)
async def test_invalid_fleet_commands_fail_with_advice(
    tmp_path: Path, typed: tuple[str, ...], advice: str
) -> None:
    async with shell(tmp_path) as here:
        done = await here.type(*typed)
    assert done.code == exits.MISUSED
    assert advice in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
async def test_ping_to_an_unknown_edge_lists_the_edges_that_are_online(tmp_path: Path) -> None:
    async with shell(tmp_path) as here, running(here, "up", "--api-port", "0") as up:
        name = machine_name()
        await up.says(f"edge {name}: online")
        done = await here.type("ping", "nobody")
    assert done.code == exits.MISUSED
    assert f"edge 'nobody' is not online; online: {name}" in done.err
    assert (here.home / ".evoclaw" / "edge.name").read_text() == name


async def test_a_broker_user_is_created_and_removed(tmp_path: Path) -> None:
    async with shell(tmp_path) as here:
        early = await here.type("channels", "user", "ann")
        async with running(here, "up", "--api-port", "0", "--no-edge", "--no-api") as up:
            await up.says("broker on")
            made = await here.type("channels", "user", "ann")
            taken = await here.type("channels", "user", "orchestrator")
            gone = await here.type("channels", "remove-user", "ann")
            again = await here.type("channels", "remove-user", "ann")
    assert (early.code, "start it" in early.err) == (exits.MISUSED, True)
    assert (made.code, len(made.out.strip()) > 16) == (exits.OK, True), made.err
    assert (taken.code, "another name" in taken.err) == (exits.MISUSED, True)
    assert (gone.code, again.code) == (exits.OK, exits.MISUSED)


async def test_commands_trust_the_certificate_of_the_service(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    async with shell(tmp_path) as here:
        data = here.home / ".evoclaw"
        data.mkdir(mode=0o700, exist_ok=True)
        (data / "evoclaw.toml").write_text(
            f'[server]\ntls_cert = "{files.server_cert}"\ntls_key = "{files.server_key}"\n'
        )
        async with running(here, "up", "--api-port", "0", "--no-edge") as up:
            await up.says("service on https://")
            seen = await here.type("status")
    assert "https://127.0.0.1" in seen.out, seen.err


async def test_an_edge_that_may_use_no_tool_says_what_to_set(tmp_path: Path) -> None:
    async with shell(tmp_path) as here:
        text = 'agent_id = "pi"\nallow_unsigned = true\n[broker]\nurl = "mqtt://127.0.0.1:1"\n'
        (here.workspace / "agent.toml").write_text(text)
        async with running(here, "edge") as edge:
            await edge.says('edge pi: 0 tools; allow some with capabilities = ["file_read"]')


async def test_a_model_is_copied_from_an_edge_that_has_it(tmp_path: Path) -> None:
    content = gguf(filler=2_000_000)
    digest = sha256(content).hexdigest()
    async with shell(tmp_path) as here, running(here, "up", "--api-port", "0", "--no-edge") as up:
        await up.says("broker on")
        line = (await here.type("edges", "invite", "pi")).out.split()
        device = replace(here, home=tmp_path / "pi", workspace=tmp_path / "pi")
        device.home.mkdir()
        (device.home / "tiny.gguf").write_bytes(content)
        installed = await device.type("models", "pull", "tiny.gguf", "--sha256", digest)
        assert installed.code == exits.OK, installed.err
        joined = await device.type(*line[1:], "--capabilities", "shell")
        assert joined.code == exits.OK, joined.err
        async with running(device, "edge"):
            await up.says("edge pi: online")
            copied = await here.type("models", "pull", f"sha256:{digest}", "--from", "pi", "--json")
            missing = await here.type("models", "pull", "qwen2.5-coder-0.5b", "--from", "pi")
        assert copied.code == exits.OK, copied.err
        facts = json.loads(copied.out)
        assert (facts["source"], facts["sha256"]) == ("edge:pi", digest)
        assert (here.home / ".evoclaw" / "models" / f"{digest}.gguf").read_bytes() == content
        assert (
            missing.code == exits.FAILED and "This edge has no model with the digest" in missing.err
        )


@pytest.mark.slow
async def test_a_model_is_pushed_to_an_edge_and_resumed_after_either_side_was_killed(
    tmp_path: Path,
) -> None:
    content = gguf(filler=60_000_000)
    digest = sha256(content).hexdigest()
    async with shell(tmp_path) as here, running(here, "up", "--api-port", "0", "--no-edge") as up:
        await up.says("broker on")
        line = (await here.type("edges", "invite", "pi")).out.split()
        device = replace(here, home=tmp_path / "pi", workspace=tmp_path / "pi")
        device.home.mkdir()
        joined = await device.type(*line[1:], "--capabilities", "shell")
        assert joined.code == exits.OK, joined.err
        (here.workspace / "tiny.gguf").write_bytes(content)
        installed = await here.type("models", "pull", "tiny.gguf", "--sha256", digest)
        assert installed.code == exits.OK, installed.err
        push = ("models", "push", "tiny", "--to", "pi", "--json")

        async with running(device, "edge"):
            await up.says("edge pi: online")
            refused = await here.type(*push)
        assert refused.code == exits.FAILED and "pi: This edge does not accept" in refused.err
        line = f'accept_models = ["sha256:{digest}"]\n'
        settings = device.workspace / "agent.toml"
        settings.write_text(line + settings.read_text())
        models = device.home / ".evoclaw" / "models"
        assert not models.exists()

        part = models / f"{digest}.part"
        async with running(device, "edge") as edge:
            first = await here.start(*push)
            await until(lambda: part.exists() and part.stat().st_size > 3_000_000)
            first.kill()
            await first.communicate()
            left = part.stat().st_size
            second = await here.start(*push)
            await until(lambda: part.stat().st_size > left + 3_000_000)
            edge.process.kill()
            await edge.process.wait()
            assert part.stat().st_size < len(content)
        async with running(device, "edge"):
            async with asyncio.timeout(PATIENCE):
                out, err = await second.communicate()
            assert second.returncode == exits.OK, err.decode()
            again = await here.type("models", "push", f"sha256:{digest}", "--to", "pi")
        facts = json.loads(out)
        assert (facts["edge"], facts["name"], facts["sha256"]) == ("pi", "tiny", digest)
        assert left <= facts["resumed_bytes"] < len(content)
        assert (models / f"{digest}.gguf").read_bytes() == content
        assert again.code == exits.OK and "tiny is installed already on pi" in again.out
        (audited,) = [
            record
            for file in device.home.rglob("*.jsonl")
            for record in map(json.loads, file.read_text().splitlines())
            if record.get("kind") == "model_installed"
        ]
        assert audited["device"] == "pi" and f"sha256:{digest}" in audited["reason"]
        listed = json.loads((await device.type("models", "--json")).out)["models"]
        assert [row["name"] for row in listed if row["installed"] and row["sha256"] == digest] == [
            "tiny"
        ]


async def test_a_push_of_an_unknown_or_changed_model_or_to_an_unknown_edge_says_so(
    tmp_path: Path,
) -> None:
    content = gguf()
    digest = sha256(content).hexdigest()
    async with shell(tmp_path) as here:
        (here.workspace / "tiny.gguf").write_bytes(content)
        installed = await here.type("models", "pull", "tiny.gguf", "--sha256", digest)
        assert installed.code == exits.OK, installed.err
        alone = await here.type("models", "push", "embedded/tiny", "--to", "pi")
        unknown = await here.type("models", "push", "tinny", "--to", "pi")
        absent = await here.type("models", "push", "qwen3-0.6b", "--to", "pi")
        digests = [
            await here.type("models", "push", f"sha256:{digits}", "--to", "pi")
            for digits in ("0" * 64, "12")
        ]
        nowhere = await here.type("models", "push", "tiny")
        async with running(here, "up", "--api-port", "0", "--no-edge") as up:
            await up.says("broker on")
            offline = await here.type("models", "push", "tiny", "--to", "pi")
        file = here.home / ".evoclaw" / "models" / f"{digest}.gguf"
        file.chmod(0o600)
        file.write_bytes(content + b"!")
        changed = await here.type("models", "push", "tiny", "--to", "pi")
    assert alone.code == exits.MISUSED and "start one with `evoclaw up`" in alone.err
    assert unknown.code == exits.MISUSED and "did you mean 'tiny'" in unknown.err
    assert absent.code == exits.MISUSED and "qwen3-0.6b is not installed" in absent.err
    assert [typed.code for typed in digests] == [exits.MISUSED] * 2
    assert "no installed model has the digest" in digests[0].err
    assert "64 hexadecimal digits" in digests[1].err
    assert nowhere.code == exits.MISUSED and "--to" in nowhere.err
    assert offline.code == exits.MISUSED and "edge 'pi' is not online" in offline.err
    assert changed.code == exits.FAILED and "`evoclaw models verify tiny`" in changed.err
