"""`evoclaw models`: list, pull, push, remove and verify the models that run on this machine."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from evoclaw.cli import exits
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.ping import EDGE_TIMEOUT_S
from evoclaw.cli.progress import waiting
from evoclaw.cli.terminal_text import clean, print_table
from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.messages import JSON
from evoclaw.providers.models.catalogue import ModelEntry, catalogue, entry_named, unknown_model
from evoclaw.providers.models.download import DownloadFailed
from evoclaw.providers.models.gguf import GgufError
from evoclaw.providers.models.local import (
    ModelNeeds,
    install_command,
    installed_needs,
    needs_of_entry,
    server_installed,
)
from evoclaw.providers.models.memory import MachineMemory, format_bytes, machine_memory
from evoclaw.providers.models.partial_file import DiskFull, PartialFile
from evoclaw.providers.models.pull import PulledModel, edge_source, pull, pull_source
from evoclaw.providers.models.store import (
    DIGEST,
    InstalledModel,
    ModelDamaged,
    ModelStore,
    check_unchanged,
    models_folder,
)

if TYPE_CHECKING:
    from evoclaw.orchestrator.fleet.model_files import PushedModel

_BAR_CELLS = 24


@click.group(cls=CommandGroup, default="list")
def models() -> None:
    """List, pull, push, remove and verify the models that run on this machine."""


@models.command("list", help="List the models, what fits this machine, and the default")
@json_option()
def _list(*, as_json: bool) -> int:
    memory = machine_memory()
    store = _store()
    installed = store.installed()
    rows = [_installed_facts(model, memory, store) for model in installed]
    digests = {model.sha256 for model in installed}
    rows += [_entry_facts(e, memory, store) for e in catalogue() if e.sha256 not in digests]
    default, why = _default(os.environ)
    if as_json:
        machine = {"total_bytes": memory.total_bytes, "free_bytes": memory.free_bytes}
        facts = {"name": default, "reason": why}
        print_out({"models": rows, "default": facts, "memory": machine})
        return exits.OK
    print_table((_row(facts, default) for facts in rows), "")
    print_out("")
    print_out(f"default: {default or 'none'}, because {why}")
    if memory.total_bytes:
        free, total = format_bytes(memory.free_bytes), format_bytes(memory.total_bytes)
        print_out(f"memory: {free} free of {total}")
    if not server_installed():
        print_out("the server for these models is missing: pip install 'evoclaw[embedded]'")
    return exits.OK


@models.command("pull", help="Install a model: a name of the list, a URL or a path")
@click.argument("what", metavar="NAME|URL|PATH", help="The model, the address or the file")
@click.option(
    "--sha256", default="", metavar="DIGEST", show_default=False, help="Require this digest"
)
@click.option(
    "--trust-first",
    is_flag=True,
    help="Accept a file of unknown digest, and require the same digest from then on",
)
@click.option(
    "--from",
    "edge",
    default="",
    metavar="EDGE",
    show_default=False,
    help="Copy the file from this edge of the fleet, which has it installed",
)
@json_option()
def _pull(what: str, sha256: str, edge: str, *, trust_first: bool, as_json: bool) -> int:
    if edge and (sha256 or trust_first):
        raise ConfigError("--from needs no other option: the name or sha256:<digest> is enough")
    try:
        if edge:
            done = asyncio.run(_copy_from_edge(what, edge))
        else:
            done = install_model(what, os.environ, sha256=sha256, trust_first=trust_first)
    except (DownloadFailed, DiskFull) as problem:
        print_err(f"evoclaw: {clean(str(problem))}")
        return exits.FAILED
    model = done.model
    use = f"use it with: --model embedded/{model.name}"
    facts: dict[str, JSON] = {"path": str(model.path), "source": model.source}
    return _report(model, model.name, done, use, facts, as_json=as_json)


@models.command("push", help="Copy an installed model to an edge, which installs it")
@click.argument("what", metavar="NAME|sha256:DIGEST", help="The model")
@click.option(
    "--to", "edge", required=True, metavar="EDGE", help="The edge, whose agent.toml must allow it"
)
@json_option()
def _push(what: str, edge: str, *, as_json: bool) -> int:
    from evoclaw.orchestrator.fleet.model_files import PushFailed

    model = _chosen(what)
    try:
        done = asyncio.run(_copy_to_edge(model, edge))
    except PushFailed as problem:
        print_err(f"evoclaw: {clean(f'{edge}: {problem}')}")
        return exits.FAILED
    name = clean(done.name)
    use = f'its edge uses it with: [model] name = "embedded/{name}" in agent.toml'
    return _report(model, name, done, use, {"edge": edge}, on=f" on {edge}", as_json=as_json)


def _report(
    model: InstalledModel,
    name: str,
    done: PulledModel | PushedModel,
    use: str,
    facts: dict[str, JSON],
    *,
    on: str = "",
    as_json: bool,
) -> int:
    if as_json:
        same: dict[str, JSON] = {
            "name": name,
            "model": f"embedded/{name}",
            "sha256": model.sha256,
            "bytes": model.size_bytes,
            "was_installed": done.was_installed,
            "resumed_bytes": done.resumed_bytes,
        }
        print_out({**same, **facts})
        return exits.OK
    how = "is installed already" if done.was_installed else "is installed and verified"
    print_out(f"{name} {how}{on} ({format_bytes(model.size_bytes)}, sha256:{model.sha256})")
    print_out(use)
    return exits.OK


@models.command("rm", help="Remove an installed model")
@click.argument("name", help="Name of the model")
@json_option()
def _remove(name: str, *, as_json: bool) -> int:
    store = _store()
    wanted = name.removeprefix("embedded/")
    freed = asyncio.run(_remove_locked(store, wanted))
    if as_json:
        print_out({"name": wanted, "freed_bytes": freed})
    else:
        print_out(f"removed {wanted}; {format_bytes(freed)} are free again")
    return exits.OK


@models.command("verify", help="Check the digest and the header of installed models")
@click.argument("name", required=False, help="Name of the model  [default: all]")
@json_option()
def _verify(name: str | None, *, as_json: bool) -> int:
    store = _store()
    chosen = [_named(store, name)] if name else store.installed()
    results = {model.name: _problem(store, model) for model in chosen}
    if as_json:
        rows = [{"name": n, "ok": not p, "problem": p} for n, p in results.items()]
        print_out(rows)
    else:
        rows = ((name, "bad" if problem else "ok", problem) for name, problem in results.items())
        print_table(rows, "no model is installed; see `evoclaw models`")
    return exits.FAILED if any(results.values()) else exits.OK


def install_model(
    what: str, env: Mapping[str, str], *, sha256: str = "", trust_first: bool = False
) -> PulledModel:
    """Install a model with a progress bar on a terminal.

    Args:
        what: A name of the catalogue, a URL, or the path of a file.
        env: For the data folder and the mirror.
        sha256: The digest that the user gives; empty for none.
        trust_first: Whether a file of unknown digest is accepted.

    Raises:
        EvoClawError: It did not work; the message says why.
    """
    store = ModelStore(models_folder(env))
    with waiting("looking at the model"):
        source = pull_source(what, store, env, sha256=sha256, trust_first=trust_first)
    bar = _ProgressBar(source.name)
    with waiting(bar.text):
        return asyncio.run(pull(source, store, progress=bar.update, note=bar.note))


async def _copy_from_edge(what: str, edge: str) -> PulledModel:
    """Install a model that an edge has installed, over the broker of the fleet."""
    from evoclaw.wiring.fleet import open_fleet

    store, source = _store(), edge_source(what, edge)
    bar = _ProgressBar(source.name)
    bar.note(f"asking {edge} for {source.name}")
    with waiting(bar.text):
        async with open_fleet(os.environ) as orchestrator:
            await orchestrator.wait_for(edge, EDGE_TIMEOUT_S, tools=False)

            async def fetch(part: PartialFile) -> None:
                await orchestrator.fetch_model(
                    edge,
                    part,
                    source.sha256,
                    size_bytes=source.size_bytes,
                    progress=bar.update,
                )

            return await pull(source, store, progress=bar.update, note=bar.note, fetch=fetch)


async def _copy_to_edge(model: InstalledModel, edge: str) -> PushedModel:
    """Copy a model to an edge, over the broker of the fleet."""
    from evoclaw.orchestrator.fleet.model_files import PushFailed
    from evoclaw.wiring.fleet import open_fleet

    try:
        check_unchanged(model)
    except ConfigError as problem:
        raise PushFailed(f"nothing was sent: {problem}") from None
    bar = _ProgressBar(model.name)
    bar.note(f"asking {edge} to take {model.name}")
    with waiting(bar.text):
        async with open_fleet(os.environ) as orchestrator:
            await orchestrator.wait_for(edge, EDGE_TIMEOUT_S, tools=False)
            return await orchestrator.push_model(
                edge,
                model.path,
                model.sha256,
                name=model.name,
                progress=bar.update,
                note=bar.note,
            )


class _ProgressBar:
    """How much of a file is there, how fast it comes, and how long it takes."""

    def __init__(self, name: str) -> None:
        self._name, self._note = clean(name), ""
        self._done = self._total = self._start = 0
        self._started = 0.0

    def note(self, text: str) -> None:
        """Say what is done until the first bytes come; once, where no line is drawn."""
        self._note = clean(text)
        if not sys.stderr.isatty():
            print_err(self._note)

    def update(self, done: int, total: int) -> None:
        """Remember the progress; what was there before counts as done, not as fast."""
        if not self._total:
            self._start, self._started = done, time.monotonic()
        self._done, self._total = done, total

    def text(self) -> str:
        """The line to draw."""
        if not self._total:
            return self._note or self._name
        share = self._done / self._total
        full = round(share * _BAR_CELLS)
        bar = "█" * full + "░" * (_BAR_CELLS - full)
        amount = f"{format_bytes(self._done)} of {format_bytes(self._total)}"
        return f"{self._name} {bar} {share:.0%} · {amount}{self._rate()}"

    def _rate(self) -> str:
        seconds = time.monotonic() - self._started
        came = self._done - self._start
        if seconds < 1 or not came:
            return ""
        left = (self._total - self._done) * seconds / came
        return f" · {format_bytes(round(came / seconds))}/s · {left:.0f} s left"


async def _remove_locked(store: ModelStore, name: str) -> int:
    """Remove a model, or what an interrupted pull left of it; the bytes that are free again."""
    entry = entry_named(name)
    partial = store.partial_bytes(entry.sha256) if entry else 0
    digest = entry.sha256 if entry and partial else _named(store, name).sha256
    async with store.locked(
        digest, lambda: print_err(f"another command uses {name}; waiting for it")
    ):
        freed = store.remove_partial(digest)
        if (model := store.of_digest(digest)) is not None:
            store.remove(model)
            freed += model.size_bytes
        return freed


def _problem(store: ModelStore, model: InstalledModel) -> str:
    """What is wrong with a model; empty if nothing is."""
    bar = _ProgressBar(model.name)
    try:
        with waiting(bar.text):
            store.verify(model, lambda read: bar.update(read, model.size_bytes))
    except (ModelDamaged, GgufError) as problem:
        return str(problem)
    except OSError as problem:
        return f"cannot read {model.path}: {problem.strerror}"
    return ""


def _chosen(what: str) -> InstalledModel:
    """The installed model of a name, or of `sha256:<digest>`."""
    store = _store()
    digest = what.lower().removeprefix("sha256:")
    if digest == what.lower():
        return _named(store, what)
    if not DIGEST.fullmatch(digest):
        raise ConfigError("sha256: needs the 64 hexadecimal digits of the file's SHA-256")
    if (model := store.of_digest(digest)) is None:
        raise ConfigError(
            f"no installed model has the digest {digest}; `evoclaw models --json` lists them"
        )
    return model


def _named(store: ModelStore, name: str) -> InstalledModel:
    wanted = name.removeprefix("embedded/")
    if (model := store.named(wanted)) is not None:
        return model
    installed = tuple(model.name for model in store.installed())
    if any(entry.name == wanted for entry in catalogue()):
        raise ConfigError(f"{wanted} is not installed; installed: {', '.join(installed) or 'none'}")
    raise unknown_model(wanted, installed)


def _default(env: Mapping[str, str]) -> tuple[str, str]:
    """The model that a run would use, and why."""
    from evoclaw.wiring.settings import default_model_and_reason

    try:
        return asyncio.run(default_model_and_reason(env))
    except EvoClawError as problem:
        return "", str(problem).partition("\n")[0].rstrip(".")


def _store() -> ModelStore:
    return ModelStore(models_folder(os.environ))


def _installed_facts(
    model: InstalledModel, memory: MachineMemory, store: ModelStore
) -> dict[str, JSON]:
    if (entry := model.entry) is not None:
        return {**_entry_facts(entry, memory, store), "installed": True, "path": str(model.path)}
    try:
        needs = installed_needs(model)
    except EvoClawError as problem:
        needs, unusable = ModelNeeds(model.size_bytes, 0, 0, 0), str(problem)
    else:
        unusable = ""
    return {
        "name": model.name,
        "title": model.name,
        "about": f"installed from {model.source}",
        "sha256": model.sha256,
        "size_bytes": model.size_bytes,
        "memory_bytes": needs.memory_bytes(),
        "problem": unusable or needs.problem(memory),
        "installed": True,
        "path": str(model.path),
    }


def _entry_facts(entry: ModelEntry, memory: MachineMemory, store: ModelStore) -> dict[str, JSON]:
    needs = needs_of_entry(entry)
    return {
        "name": entry.name,
        "title": entry.title,
        "about": entry.about,
        "parameters": entry.parameters,
        "quantisation": entry.quantisation,
        "licence": entry.licence,
        "context_tokens": entry.context_tokens,
        "template_notes": entry.template_notes,
        "sha256": entry.sha256,
        "digest_source": entry.digest_source,
        "size_bytes": entry.size_bytes,
        "memory_bytes": needs.memory_bytes(),
        "problem": needs.problem(memory),
        "tested": entry.is_tested,
        "installed": False,
        "partial_bytes": store.partial_bytes(entry.sha256),
        "install": install_command(entry),
        "ollama": entry.ollama,
        "path": None,
    }


def _row(facts: dict[str, JSON], default: str) -> tuple[str, ...]:
    name = str(facts["name"])
    state = "installed" if facts["installed"] else ""
    if default == f"embedded/{name}":
        state = "default"
    elif not state and facts.get("partial_bytes"):
        state = f"{int(facts['partial_bytes']) / int(facts['size_bytes']):.0%} there"
    fits = str(facts["problem"] or "fits")
    size, memory = (format_bytes(int(facts[key])) for key in ("size_bytes", "memory_bytes"))
    return name, state, f"{size} disk", f"{memory} memory", fits, str(facts["about"])
