"""The files under `examples/deploy` say nothing that the code does not know."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evoclaw.api.auth import PUBLIC_PATHS
from evoclaw.api.server import allowed_hosts
from evoclaw.cli.up import up
from evoclaw.config import read_evoclaw_toml
from evoclaw.core.errors import ConfigError
from evoclaw.providers.registry import model_setup_help
from evoclaw.transport.broker_accounts import BrokerAccounts, BrokerRole
from evoclaw.trust.grants import Signer
from tests.support.deployed_brokers import FILES, accounts

ROOT = FILES.parents[1]
MANIFESTS = sorted((FILES / "kubernetes").glob("*.yaml"))
SECRETS = "/run/secrets/"
Tree = dict[str, Any]


def compose() -> Tree:
    return msgspec.yaml.decode((FILES / "compose.yaml").read_text())


def manifests() -> list[Tree]:
    texts = [text for path in MANIFESTS for text in path.read_text().split("\n---\n")]
    return [msgspec.yaml.decode(text) for text in texts]


def manifest(kind: str, name: str = "evoclaw") -> Tree:
    return next(m for m in manifests() if m["kind"] == kind and m["metadata"]["name"] == name)


def container() -> Tree:
    return manifest("StatefulSet")["spec"]["template"]["spec"]["containers"][0]


def composed_env(name: str) -> dict[str, str]:
    return compose()["services"][name]["environment"]


def kubernetes_env() -> dict[str, str]:
    return {one["name"]: one.get("value", "secret") for one in container()["env"]}


def settings_text(which: str) -> str:
    if which == "compose":
        return (FILES / "evoclaw.toml").read_text()
    return manifest("ConfigMap")["data"]["evoclaw.toml"]


def env_of(which: str) -> dict[str, str]:
    return composed_env("one") if which == "compose" else kubernetes_env()


def is_read(name: str, env: dict[str, str], path: Path) -> bool:
    """Whether anything is another without it."""
    try:
        without = read_evoclaw_toml(path, {key: env[key] for key in env if key != name})
    except ConfigError:
        return True
    return without != read_evoclaw_toml(path, env)


BOTH = pytest.mark.parametrize("which", ["compose", "kubernetes"])


@BOTH
def test_every_variable_and_setting_is_known(which: str, tmp_path: Path) -> None:
    env = env_of(which)
    path = tmp_path / "evoclaw.toml"
    path.write_text(settings_text(which))

    config = read_evoclaw_toml(path, env)

    for name in env:
        assert is_read(name, env, path) or name in model_setup_help(), f"nobody reads {name}"
    assert config.store.url.startswith("postgresql://") and not config.store.url.count(":@")
    assert config.store.password_file == f"{SECRETS}store-password"
    address = config.broker.address("secret")
    assert (address.port, address.username, address.tls is not None) == (8883, "orchestrator", True)
    assert config.broker.password_file == Path(SECRETS, "broker-password")
    assert config.broker.ca_file == Path(SECRETS, "broker-ca")
    assert config.server.host == "0.0.0.0" and config.sandbox_settings.engine == "native"


@BOTH
def test_health_check_and_peer_host_names_are_allowed(which: str, tmp_path: Path) -> None:
    path = tmp_path / "evoclaw.toml"
    path.write_text(settings_text(which))
    server = read_evoclaw_toml(path, {}).server

    known = allowed_hosts(server.host, server.port, server.names)

    assert known is not None
    if which == "compose":
        told = compose()["services"]["one"]["healthcheck"]["test"][-1]
        host, asked = re.findall(r"http://([^/]+)(/[^\"]+)", told)[0]
        assert host in known and asked in PUBLIC_PATHS
        for name in ("one", "two"):
            published = compose()["services"][name]["ports"][0].split(":")
            assert f"localhost:{published[1]}" in known and int(published[2]) == server.port
        return
    probes = [
        container()[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")
    ]
    assert [probe["path"] for probe in probes] == ["/health/live", "/health/live", "/health/ready"]
    for probe in probes:
        assert probe["path"] in PUBLIC_PATHS and probe["port"] == "http"
        assert probe["httpHeaders"] == [{"name": "Host", "value": "evoclaw"}] and "evoclaw" in known
    assert container()["ports"] == [{"name": "http", "containerPort": server.port}]
    assert f"evoclaw:{server.port}" in known and "evoclaw.evoclaw.svc" in known


def test_every_container_command_is_valid() -> None:
    services = compose()["services"]
    dockerfile = (FILES / "Dockerfile").read_text()
    asked = [services["one"]["command"], services["two"]["command"], container()["args"]]
    asked.append(msgspec.json.decode(re.findall(r"^CMD (.+)$", dockerfile, re.MULTILINE)[0]))
    for words in asked:
        assert words[0] == "evoclaw"
        assert words[1] == "up"
        with up.make_context("up", words[2:]) as context:
            assert context.params["no_edge"]


def test_every_referenced_file_exists() -> None:
    for line in re.findall(
        r"^COPY (?:--\S+ )*(.+)$", (FILES / "Dockerfile").read_text(), re.MULTILINE
    ):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    assert (ROOT / compose()["services"]["one"]["build"]["dockerfile"]).samefile(
        FILES / "Dockerfile"
    )
    extras = re.findall(r"/src\[([\w,]+)\]", (FILES / "Dockerfile").read_text())[0].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) <= set(project["optional-dependencies"])
    for service in compose()["services"].values():
        for volume in service.get("volumes", ()):
            place = volume.split(":")[0]
            if place.startswith("./") and not place.startswith("./state/"):
                assert (FILES / place).is_file(), place
    conf = (FILES / "mosquitto" / "mosquitto.conf").read_text()
    mounted = [volume.split(":")[1] for volume in compose()["services"]["broker"]["volumes"]]
    for path in re.findall(r"(?:/etc|/var)/\S+", conf):
        assert any(path.startswith(place) for place in mounted), path


def test_every_used_secret_is_a_defined_file() -> None:
    secrets = compose()["secrets"]
    for service in compose()["services"].values():
        given = {f"{SECRETS}{name}" for name in service.get("secrets", ())}
        used = {
            str(v) for v in service.get("environment", {}).values() if str(v).startswith(SECRETS)
        }
        assert used <= given
        assert {name.removeprefix(SECRETS) for name in given} <= set(secrets)
    spec = manifest("StatefulSet")["spec"]["template"]["spec"]
    made = manifest("Secret")["stringData"]
    volume = next(one["secret"] for one in spec["volumes"] if "secret" in one)
    assert {item["key"] for item in volume["items"]} <= set(made)
    paths = {f"{SECRETS}{item['path']}" for item in volume["items"]}
    assert {v for v in kubernetes_env().values() if v.startswith(SECRETS)} <= paths
    keys = [e["valueFrom"]["secretKeyRef"]["key"] for e in container()["env"] if "valueFrom" in e]
    assert set(keys) <= set(made)
    assert all(value == "CHANGE-ME" for value in made.values())


def test_containers_are_unprivileged_and_not_root() -> None:
    for name, service in compose()["services"].items():
        assert not {"privileged", "cap_add", "network_mode", "pid"} & set(service), name
        assert service["security_opt"] == ["no-new-privileges:true"]
        if name != "postgres":  # its image leaves root by itself
            assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
            assert service["user"].startswith("${RUN_AS:?")
    spec = manifest("StatefulSet")["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert f"USER {spec['securityContext']['runAsUser']}:" in (FILES / "Dockerfile").read_text()
    own = container()["securityContext"]
    assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}


def test_stop_grace_periods_exceed_the_drain_time() -> None:
    drain = read_evoclaw_toml(None, {}).runs.drain_s
    for name in ("one", "two"):
        assert int(compose()["services"][name]["stop_grace_period"].removesuffix("s")) > drain
    spec = manifest("StatefulSet")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] > drain


def test_kubernetes_manifests_select_the_same_pods() -> None:
    labels = manifest("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert manifest("StatefulSet")["spec"]["selector"]["matchLabels"] == labels
    for name in ("evoclaw", "evoclaw-each"):
        assert manifest("Service", name)["spec"]["selector"] == labels
        assert [p["port"] for p in manifest("Service", name)["spec"]["ports"]] == [8433]
    assert manifest("StatefulSet")["spec"]["serviceName"] == "evoclaw-each"
    for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        assert manifest(kind)["spec"][key]["matchLabels"] == labels
    out = {p["port"] for rule in manifest("NetworkPolicy")["spec"]["egress"] for p in rule["ports"]}
    assert {5432, 8883} <= out
    assert {m["metadata"].get("namespace", "evoclaw") for m in manifests()} == {"evoclaw"}


def test_the_prepare_script_creates_usable_private_secrets(tmp_path: Path) -> None:
    state = tmp_path / "state"
    env = os.environ | {"STATE": str(state), "PYTHON": sys.executable}
    command = ["sh", FILES / "prepare.sh", "broker.example.org", "192.0.2.7"]
    subprocess.run(command, env=env, check=True, timeout=60, capture_output=True)

    made = {path.name for path in (state / "secrets").iterdir()}
    assert made == set(compose()["secrets"])
    for path in files_in(state):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert len(Signer.load_or_create(state / "secrets" / "orchestrator-key").public_key) == 43
    names = [(one.name, one.role) for one in BrokerAccounts(state / "accounts").all()]
    assert names == [("orchestrator", BrokerRole.ORCHESTRATOR)]
    again = subprocess.run(command, env=env, timeout=60, capture_output=True, text=True)
    assert again.returncode == 2 and "is there already" in again.stderr


def files_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def test_the_entrypoint_copies_the_key_with_private_mode(tmp_path: Path) -> None:
    (tmp_path / "orchestrator-key").write_text("key")
    (tmp_path / "orchestrator-key").chmod(0o644)
    home = tmp_path / "home"
    home.mkdir()
    env = os.environ | {"SECRETS": str(tmp_path), "EVOCLAW_HOME": str(home)}

    done = subprocess.run(
        ["sh", FILES / "entrypoint.sh", "echo", "begun"],
        env=env,
        timeout=20,
        capture_output=True,
        text=True,
        check=True,
    )

    kept = home / "orchestrator.key"
    assert done.stdout == "begun\n" and kept.read_text() == "key"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_broker_accounts_refuse_duplicate_invalid_and_unknown_names(tmp_path: Path) -> None:
    accounts("add", tmp_path, "garage")
    for words in (
        ("add", tmp_path, "garage"),
        ("add", tmp_path, "a/b"),
        ("commands", tmp_path, "x"),
    ):
        done = subprocess.run(
            [sys.executable, FILES / "accounts.py", *words],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2 and done.stderr.startswith("accounts.py: ")
