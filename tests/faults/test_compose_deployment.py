"""What `compose.yaml` runs, run without containers: PostgreSQL, a broker, two orchestrators."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from evoclaw.config import write_agent_toml
from evoclaw.trust.grants import Signer
from tests.deploy.test_deploy import compose, composed_env
from tests.support.deployed_brokers import FILES, accounts, mosquitto
from tests.support.ports import free_port
from tests.support.postgres import USER, Postgres, why_no_postgres

PATIENCE = 90.0
"""Seconds; the services start on a busy machine, one after the other."""
EVOCLAW = (sys.executable, "-m", "evoclaw")


@asynccontextmanager
async def process(
    *argv: str | Path, env: Mapping[str, str], log: Path
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Ended, and waited for, with the block."""
    with log.open("ab") as out:
        begun = await asyncio.create_subprocess_exec(*argv, env=env, stdout=out, stderr=out)
    try:
        yield begun
    finally:
        if begun.returncode is None:
            begun.terminate()
        try:
            await asyncio.wait_for(begun.wait(), PATIENCE)
        except TimeoutError:
            begun.kill()
            await begun.wait()


def said_by_compose(name: str, state: Path, store: int, broker: int) -> dict[str, str]:
    """Its environment, with the places of this machine."""
    env = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    env["ANTHROPIC_API_KEY"] = "of nobody"
    for key, value in composed_env(name).items():
        value = value.replace("/run/secrets", str(state / "secrets"))
        value = value.replace(
            "postgresql://evoclaw@postgres:5432/evoclaw",
            f"postgresql://{USER}@127.0.0.1:{store}/postgres",
        )
        env[key] = value.replace("broker:8883", f"127.0.0.1:{broker}")
    return env | {"EVOCLAW_HOME": str(state / name), "SECRETS": str(state / "secrets")}


async def is_well(name: str, env: Mapping[str, str], port: int, log: Path) -> None:
    """Wait until the health check of `compose.yaml` says so."""
    check: list[str] = compose()["services"][name]["healthcheck"]["test"][1:]
    command = [sys.executable, *check[1:-1], check[-1].replace(":8433", f":{port}")]
    async with asyncio.timeout(PATIENCE):
        while True:
            asked = await asyncio.create_subprocess_exec(
                *command, env=env, stderr=asyncio.subprocess.DEVNULL
            )
            if await asked.wait() == 0:
                return
            assert "evoclaw: " not in (told := await asyncio.to_thread(log.read_text)), told
            # Nothing tells when another process is ready; that is what is asked for here.
            await asyncio.sleep(0.1)


async def seen(
    env: Mapping[str, str], agent: str, so: Callable[[Any], object] = lambda row: True
) -> dict[str, object]:
    """What `evoclaw edges` tells of an edge, once it is online and a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while True:
            asked = await asyncio.create_subprocess_exec(
                *EVOCLAW, "edges", "list", "--json", env=env, stdout=asyncio.subprocess.PIPE
            )
            told, _ = await asked.communicate()
            for row in json.loads(told or b"[]"):
                if row["agent"] == agent and row["online"] and so(row):
                    return row


async def test_two_orchestrators_are_healthy_and_share_an_approved_edge(tmp_path: Path) -> None:
    if reason := why_no_postgres():
        pytest.skip(reason)
    state = tmp_path / "state"
    prepared = os.environ | {"STATE": str(state), "PYTHON": sys.executable}
    subprocess.run(["sh", FILES / "prepare.sh"], env=prepared, check=True, timeout=60)  # noqa: ASYNC221
    accounts("add", state / "accounts", "garage")
    (state / "broker" / "dynamic-security.json").write_text(
        accounts("mosquitto", state / "accounts")
    )
    postgres, broker = Postgres(), mosquitto(state / "broker", state / "certs")
    async with AsyncExitStack() as stack:
        stack.callback(postgres.close)
        await asyncio.to_thread(postgres.start)
        stack.callback(broker.kill)
        await broker.start()
        envs: dict[str, dict[str, str]] = {}
        for name in ("one", "two"):
            env = envs[name] = said_by_compose(name, state, postgres.port, broker.port)
            port, log = free_port(), tmp_path / f"{name}.log"
            text = (FILES / "evoclaw.toml").read_text().replace('"0.0.0.0"', '"127.0.0.1"')
            (state / name / "evoclaw.toml").write_text(text)
            words = [*EVOCLAW, *compose()["services"][name]["command"][1:], "--api-port", str(port)]
            up = process("sh", FILES / "entrypoint.sh", *words, env=env, log=log)
            await stack.enter_async_context(up)
            await is_well(name, env, port, log)
        edge = agent_toml(state, tmp_path, broker.port)
        await stack.enter_async_context(
            process(*EVOCLAW, "edge", "--config", edge, env=envs["one"], log=tmp_path / "edge.log")
        )

        assert (await seen(envs["one"], "garage"))["tools"] == []
        approving = await asyncio.create_subprocess_exec(
            *EVOCLAW, "edges", "approve", "garage", env=envs["one"]
        )
        assert await approving.wait() == 0

        # The other orchestrator learns of it within a second or so.
        await seen(envs["two"], "garage", lambda row: "read" in str(row["tools"]))
        # What is up all the time knows it too, and is stopped from where it was not typed.
        told = await says(state / "two", "/v1/fleet/garage", lambda edge: "read" in edge["tools"])
        assert told["state"] == "approved"
        stopping = await asyncio.create_subprocess_exec(
            *EVOCLAW, "stop", "--all", "--reason", "smoke", env=envs["one"]
        )
        assert await stopping.wait() == 0
        (stop,) = (await says(state / "two", "/v1/stops", lambda found: found["items"]))["items"]
        assert (stop["kind"], stop["reason"]) == ("all", "smoke")


async def says(home: Path, path: str, so: Callable[[Any], object]) -> Any:
    """What the running orchestrator of a data folder answers, once that is so."""
    door = json.loads(await asyncio.to_thread((home / "api.json").read_text))

    def ask() -> Any:
        headers = {"Authorization": f"Bearer {door['token']}"}
        asked = urllib.request.Request(door["url"] + path, headers=headers)
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            return json.load(answer)

    async with asyncio.timeout(PATIENCE):
        while True:
            found = await asyncio.to_thread(ask)
            if so(found):
                return found
            await asyncio.sleep(0.1)


def agent_toml(state: Path, folder: Path, port: int) -> Path:
    """As the guide says it for an edge at a broker of one's own."""
    path = folder / "agent.toml"
    (folder / "work").mkdir()
    values = {
        "agent_id": "garage",
        "capabilities": ["file_read"],
        "workspace": str(folder / "work"),
        "data": str(folder / "edge"),
        "orchestrator_keys": [
            Signer.load_or_create(state / "secrets" / "orchestrator-key").public_key
        ],
        "broker": {
            "url": f"mqtts://127.0.0.1:{port}",
            "username": "garage",
            "password_file": str(state / "accounts" / "passwords" / "garage"),
            "ca_file": str(state / "secrets" / "broker-ca"),
        },
    }
    write_agent_toml(path, values)
    return path
