"""`evoclaw genome`: show, change, roll back and verify the genomes of agents and edges."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from evoclaw.cli import exits, service_api
from evoclaw.cli.approvals import identify_answerer
from evoclaw.cli.client import ServiceClient, with_client
from evoclaw.cli.options import FILE, CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.receipts import write_lines
from evoclaw.cli.terminal_text import clean, format_time, one_line, print_table, text_of
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_object

SHORT_DIGEST_CHARS = 12


@click.group(cls=CommandGroup)
def genome() -> None:
    """Show, change, roll back and verify genomes of agents and edges."""


_AGENT = click.argument("agent", help="Name of the agent, or id of the edge")
_VERSION = click.option(
    "--version", type=int, metavar="N", show_default="the current one", help="Show version N"
)
_REASON = click.option(
    "--reason", default="", metavar="TEXT", show_default=False, help="Say why, for the lineage"
)


@genome.command("show", help="Show a genome: what it sets, the rest is as configured")
@_AGENT
@_VERSION
@json_option()
def _show(agent: str, version: int | None, *, as_json: bool) -> int:
    async def show(client: ServiceClient) -> None:
        found = await _fetch(client, agent, version)
        if as_json:
            print_out(found)
            return
        _print_head(found)
        print_out(clean(_pretty(found["genome"])) if found["genome"] else "as configured")

    return with_client(show)


@genome.command("diff", help="Show what changed between two versions")
@_AGENT
@click.argument("old", type=int, help="The older version; 0 is the configuration")
@click.argument("new", type=int, required=False, help="The newer version [default: the current]")
@json_option()
def _diff(agent: str, old: int, new: int | None, *, as_json: bool) -> int:
    async def diff(client: ServiceClient) -> None:
        from evoclaw.core.genome import Genome
        from evoclaw.evolution.lineage_entries import changes_between

        sides = [
            msgspec.convert((await _fetch(client, agent, version))["genome"], Genome)
            for version in (old, new)
        ]
        changes = changes_between(*sides)
        if as_json:
            print_out(changes)
        else:
            print_out(clean(_pretty(changes)) if changes else "no difference")

    return with_client(diff)


@genome.command("history", help="List the versions, evaluations and candidates of a genome")
@_AGENT
@json_option()
def _history(agent: str, *, as_json: bool) -> int:
    async def history(client: ServiceClient) -> None:
        found = service_api.as_object(await client.get(_path(agent, "history")))["items"]
        if as_json:
            print_out(found)
            return
        rows = [
            (
                "" if entry.get("version") is None else f"v{entry['version']}",
                text_of(entry, "kind"),
                text_of(entry, "digest")[:SHORT_DIGEST_CHARS] or "as configured",
                format_time(entry.get("at")),
                text_of(entry, "by"),
                one_line(_about(entry)),
            )
            for entry in found
        ]
        print_table(rows, f"{clean(agent)} is as configured; change it with `evoclaw genome set`")

    return with_client(history)


@genome.command("set", help="Make a new version from a patch: objects are merged, null resets")
@_AGENT
@click.option("--file", type=FILE, required=True, metavar="FILE", help="Read the patch, as JSON")
@_REASON
@click.option("--run", multiple=True, metavar="ID", help="Name a run as the reason; repeatable")
@json_option()
def _set(agent: str, file: Path, reason: str, run: tuple[str, ...], *, as_json: bool) -> int:
    check_person()
    body: dict[str, JSON] = {"genome": read_patch(file), "reason": reason, "runs": list(run)}
    return with_client(lambda client: _change(client, agent, "versions", body, as_json=as_json))


@genome.command("rollback", help="Restore an earlier version, as a new version")
@_AGENT
@click.argument("version", type=int, required=False, help="The version [default: the one before]")
@_REASON
@json_option()
def _rollback(agent: str, version: int | None, reason: str, *, as_json: bool) -> int:
    check_person()
    body: dict[str, JSON] = {"version": version, "reason": reason}
    return with_client(lambda client: _change(client, agent, "rollback", body, as_json=as_json))


@genome.command("export", help="Export the signed lineage to a file that anyone can verify")
@_AGENT
@click.argument("file", type=FILE, help="The file to write: JSON lines")
def _export(agent: str, file: Path) -> int:
    async def export(client: ServiceClient) -> None:
        lines = await _entries(client, agent)
        write_lines(file, lines)
        print_out(f"{len(lines)} entries; check them with: python -m evoclaw.verify {file}")

    return with_client(export)


@genome.command("verify", help="Verify the lineage of a genome, or an exported file")
@click.argument("agent", help="Name of the agent, id of the edge, or an exported file")
@click.option("--key", metavar="KEY", help="Accept only entries signed with this public key")
def _verify(agent: str, key: str | None) -> int:
    if Path(agent).is_file():
        return _run_verifier(Path(agent), [] if key is None else [f"{_agent_of(agent)}={key}"])

    async def verify(client: ServiceClient) -> int:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "lineage.jsonl"
            write_lines(file, await _entries(client, agent))
            return _run_verifier(file, [] if key is None else [f"{_agent_of(str(file))}={key}"])

    return with_client(verify)


def _agent_of(file: str) -> str:
    """The agent of an exported lineage."""
    try:
        first = json.loads(Path(file).read_text(encoding="utf-8").partition("\n")[0])
        return str(json.loads(first["body"])["agent"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{file} is not a lineage of `evoclaw genome export`") from None


def _run_verifier(file: Path, keys: Sequence[str]) -> int:
    argv = [sys.executable, "-m", "evoclaw.verify", str(file)]
    argv += [word for key in keys for word in ("--key", key)]
    sys.stdout.flush()
    return exits.OK if subprocess.run(argv, check=False).returncode == 0 else exits.FAILED


async def _fetch(client: ServiceClient, agent: str, version: int | None) -> dict[str, JSON]:
    query = {} if version is None else {"version": version}
    return service_api.as_object(await client.get(_path(agent), **query))


async def _entries(client: ServiceClient, agent: str) -> list[dict[str, JSON]]:
    entries = service_api.as_object(await client.get(_path(agent, "export")))["entries"]
    if not entries:
        raise ConfigError(f"the genome of {agent!r} has no lineage yet: it is as configured")
    return entries


async def _change(
    client: ServiceClient, agent: str, what: str, body: dict[str, JSON], *, as_json: bool
) -> None:
    found = service_api.as_object(await client.post(_path(agent, what), body))
    if as_json:
        print_out(found)
    else:
        _print_head(found)


def _path(agent: str, *rest: str) -> str:
    return service_api.api_path("genomes", agent, *rest)


def _print_head(found: dict[str, JSON]) -> None:
    digest = text_of(found, "digest")[:SHORT_DIGEST_CHARS] or "as configured"
    restored = found.get("restored")
    back = "" if restored is None else f", restored from version {restored}"
    print_out(f"{clean(text_of(found, 'agent'))}: version {found['version']} ({digest}){back}")
    for warning in found.get("warnings", ()):
        print_err(f"warning: {one_line(warning, 500)}")


def _about(entry: dict[str, JSON]) -> str:
    """The reason of a version, the result of an evaluation, or the verdict on a candidate."""
    scores = entry.get("scores")
    if entry.get("kind") == "evaluation" and is_object(scores):
        return _result(scores)
    if entry.get("kind") == "opening" and is_object(scores):
        return f"sealed cases, release {text_of(scores, 'release')}"
    if entry.get("kind") == "verdict":
        passed = entry.get("passed")
        verdict = "open" if passed is None else "passed" if passed else "failed"
        why = f": {text_of(entry, 'reason')}" if entry.get("reason") else ""
        return f"candidate {entry.get('candidate')}, {text_of(entry, 'stage')}: {verdict}{why}"
    return text_of(entry, "reason")


def _result(scores: dict[str, JSON]) -> str:
    """The share that passed with its interval; the coverage if a record answered calls."""
    from evoclaw.evolution.evaluation import wilson

    passed, attempts, coverage = scores["passed"], scores["attempts"], scores.get("coverage")
    if not attempts:
        return "nothing was judged"
    rate = wilson(passed, attempts)  # of a roll-out, the entry has no interval
    text = f"{passed:g} of {attempts} passed, {rate.rate:.0%} [{rate.low:.0%}, {rate.high:.0%}]"
    covered = "" if coverage is None else f", coverage {coverage:.0%}"
    release = f", release {text_of(scores, 'release')}" if scores.get("release") else ""
    return f"{text}{covered}{release}"


def _pretty(value: JSON) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def read_patch(file: Path) -> JSON:
    """The patch of a genome in a file, or in the standard input."""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        patch: JSON = msgspec.json.decode(data)
    except OSError as problem:
        raise ConfigError(f"cannot read {file}: {problem.strerror}") from None
    except msgspec.DecodeError as problem:
        raise ConfigError(f"{file} is not JSON: {problem}") from None
    if not is_object(patch):
        raise ConfigError(f'{file} must contain a JSON object, such as {{"prompt": "…"}}')
    return patch


def check_person() -> None:
    """Refuse programs: only a person may change a genome."""
    if why := identify_answerer().refusal_reason("local"):
        raise ConfigError(why)
