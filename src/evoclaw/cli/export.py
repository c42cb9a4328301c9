"""`evoclaw export` and `evoclaw import`: move the whole store in one file, or export one run."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click
import msgspec

from evoclaw.cli import exits
from evoclaw.cli.options import FILE, CliCommand, json_option
from evoclaw.cli.output import print_out
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.store.databases.export_import import ExportManifest, export_to, import_from


@click.command(cls=CliCommand)
@click.argument("file", type=FILE, help="The file to write; it must not exist")
@click.option(
    "--tenant", default="", metavar="TENANT", show_default="all", help="Export only this tenant"
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["store", "atif"]),
    default="store",
    help="The whole store, or one run as a trajectory (ATIF) for other tools",
)
@click.option("--run", "run_id", default="", metavar="RUN", help="The run, for --format atif")
@json_option()
def export(file: Path, tenant: str, kind: str, run_id: str, *, as_json: bool) -> int:
    """Write everything, or one run, into a new file."""
    if file.exists():
        raise ConfigError(f"{file} already exists; choose another name")
    if (kind == "atif") is not bool(run_id):
        raise ConfigError("name one run with --run RUN for --format atif; see `evoclaw runs`")
    if kind == "atif":
        return _export_run(file, run_id, tenant, as_json=as_json)
    moved = asyncio.run(_write(file, tenant))
    note = "the file contains all conversations and results: keep it private"
    _report(file, moved, note, as_json=as_json)
    return exits.OK


def _export_run(file: Path, run_id: str, tenant: str, *, as_json: bool) -> int:
    found = asyncio.run(_trajectory(run_id, tenant))
    steps = len(found["steps"])
    file.touch(mode=0o600, exist_ok=False)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    if as_json:
        print_out({"file": str(file), "run": run_id, "steps": steps})
    else:
        print_out(f"{file}: {steps} steps of run {run_id}")
        print_out("the file contains the conversation and all results: keep it private")
    return exits.OK


@click.command("import", cls=CliCommand)
@click.argument("file", type=FILE, help="A file of `evoclaw export`")
@click.option("--keep", is_flag=True, help="Keep rows that exist already instead of failing")
@json_option()
def import_command(file: Path, *, keep: bool, as_json: bool) -> int:
    """Read everything from a file."""
    moved = asyncio.run(_read(file, keep=keep))
    _report(file, moved, "import complete; start with `evoclaw up`", as_json=as_json)
    return exits.OK


async def _write(file: Path, tenant: str) -> ExportManifest:
    from evoclaw.wiring.store import all_schemas, connect_database

    schemas = all_schemas()
    async with connect_database(os.environ, *schemas) as database:
        return await export_to(file, database, schemas, tenant=tenant)


async def _trajectory(run_id: str, tenant: str) -> dict[str, JSON]:
    from evoclaw.observe.trajectories import to_atif
    from evoclaw.wiring.store import open_sessions

    async with open_sessions(os.environ) as sessions:
        store = sessions.of(tenant) if tenant else sessions
        stored = await store.run(run_id)
        if stored is None:
            raise ConfigError(f"there is no run {run_id[:80]!r}; see `evoclaw runs`")
        records = await store.records(run_id)
    return to_atif(records, session_id=stored.session_id)


async def _read(file: Path, *, keep: bool) -> ExportManifest:
    from evoclaw.wiring.store import all_schemas, connect_database

    schemas = all_schemas()
    async with connect_database(os.environ, *schemas) as database:
        return await import_from(file, database, schemas, existing="keep" if keep else "refuse")


def _report(file: Path, moved: ExportManifest, note: str, *, as_json: bool) -> None:
    if as_json:
        print_out({"file": str(file), "rows": moved.rows, **msgspec.to_builtins(moved)})
        return
    print_out(f"{file}: {moved.rows} rows of {len(moved.parts)} stores")
    print_out(note)
