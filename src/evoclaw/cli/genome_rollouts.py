"""`evoclaw genome roll-out`, `roll-outs` and `halt`: a genome for many edges, in stages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from evoclaw.cli import exits, service_api
from evoclaw.cli.client import ServiceClient, with_client
from evoclaw.cli.genome import SHORT_DIGEST_CHARS, check_person, genome, read_patch
from evoclaw.cli.options import FILE, json_option
from evoclaw.cli.output import print_out
from evoclaw.cli.terminal_text import clean, format_time, one_line, print_table, text_of
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_object

WAIT_POLL_INTERVAL_S = 0.5
_ENDED = ("completed", "rolled_back")
_REASON = click.option(
    "--reason", default="", metavar="TEXT", show_default=False, help="Say why, for the lineages"
)

__all__ = ["genome"]


@genome.command("roll-out", help="Roll a patch out to many edges in stages")
@click.option("--to", "selector", required=True, metavar="EDGES", help="Ids, type:NAME or *")
@click.option("--file", type=FILE, required=True, metavar="FILE", help="Read the patch, as JSON")
@click.option(
    "--stages", default="5,25,100", metavar="LIST", help="Per cent of the edges in each stage"
)
@click.option("--soak", type=float, default=300.0, metavar="S", help="Watch each stage S seconds")
@click.option(
    "--min-evidence", type=int, default=10, metavar="N", help="Require N judged calls a stage"
)
@click.option(
    "--max-drop", type=float, default=0.1, metavar="X", help="Let fitness fall by X at most"
)
@click.option(
    "--max-failed", type=int, default=0, metavar="N", help="Let N edges refuse or stop answering"
)
@click.option(
    "--answer", type=float, default=120.0, metavar="S", help="Count an edge as failed after S"
)
@click.option("--wait", is_flag=True, help="Wait until it is completed or rolled back")
@_REASON
@json_option()
def _roll_out(
    selector: str,
    file: Path,
    stages: str,
    soak: float,
    min_evidence: int,
    max_drop: float,
    max_failed: int,
    answer: float,
    reason: str,
    *,
    wait: bool,
    as_json: bool,
) -> int:
    check_person()
    body: dict[str, JSON] = {
        "selector": selector, "genome": read_patch(file), "reason": reason,
        "stages": _read_stages(stages),
        "bounds": {
            "soak_s": soak, "min_evidence": min_evidence, "max_drop": max_drop,
            "max_failed": max_failed, "answer_s": answer,
        },
    }  # fmt: skip

    async def roll_out(client: ServiceClient) -> int:
        started = service_api.as_object(
            await client.post(service_api.api_path("genome-rollouts"), body)
        )
        found = await _wait(client, started) if wait else started
        if as_json:
            print_out(found)
        else:
            _print_rollout(found)
        return exits.FAILED if found["state"] == "rolled_back" else exits.OK

    return with_client(roll_out)


@genome.command("roll-outs", help="List roll-outs, or show what each edge of one has")
@click.argument("rollout", required=False, help="Id of a roll-out")
@json_option()
def _roll_outs(rollout: str | None, *, as_json: bool) -> int:
    async def show(client: ServiceClient) -> None:
        path = service_api.api_path("genome-rollouts", *([] if rollout is None else [rollout]))
        found = service_api.as_object(await client.get(path))
        if as_json:
            print_out(found["items"] if rollout is None else found)
        elif rollout is None:
            rows = [_row(item) for item in found["items"]]
            print_table(rows, "no roll-outs; start one with `evoclaw genome roll-out`")
        else:
            _print_rollout(found["rollout"])
            print_table([_edge_row(edge) for edge in found["edges"]], "no edges")

    return with_client(show)


@genome.command("halt", help="Halt a roll-out: every edge gets its old genome back")
@click.argument("rollout", help="Id of a roll-out")
@_REASON
@json_option()
def _halt(rollout: str, reason: str, *, as_json: bool) -> int:
    check_person()

    async def halt(client: ServiceClient) -> None:
        path = service_api.api_path("genome-rollouts", rollout, "halt")
        found = service_api.as_object(await client.post(path, {"reason": reason}))
        if as_json:
            print_out(found)
        else:
            _print_rollout(found)

    return with_client(halt)


async def _wait(client: ServiceClient, started: dict[str, JSON]) -> dict[str, JSON]:
    path = service_api.api_path("genome-rollouts", str(started["id"]))
    while True:
        found = service_api.as_object(await client.get(path))["rollout"]
        if found["state"] in _ENDED:
            return found
        await asyncio.sleep(WAIT_POLL_INTERVAL_S)


def _read_stages(text: str) -> list[JSON]:
    try:
        return [float(part.strip().removesuffix("%")) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--stages must be numbers in per cent, such as 5,25,100; got {text!r}"
        ) from None


def _print_rollout(found: dict[str, JSON]) -> None:
    stages = found["stages"]
    share = stages[min(found["stage"], len(stages)) - 1]
    print_out(
        f"{clean(text_of(found, 'id'))}: {text_of(found, 'state')}, stage {found['stage']} of "
        f"{len(stages)} ({share:g} %): {_counts(found)}"
    )
    if problem := text_of(found, "problem"):
        print_out(f"rolled back because {one_line(problem)}")


def _row(found: dict[str, JSON]) -> tuple[str, ...]:
    return (
        text_of(found, "id"),
        text_of(found, "state"),
        one_line(text_of(found, "selector")),
        _counts(found),
        format_time(found.get("started_at")),
        text_of(found, "by"),
        one_line(text_of(found, "problem") or text_of(found, "reason")),
    )


def _counts(found: dict[str, JSON]) -> str:
    edges = found.get("edges")
    counts = edges.items() if is_object(edges) else ()
    return ", ".join(f"{number} {state}" for state, number in sorted(counts)) or "no edges"


def _edge_row(edge: dict[str, JSON]) -> tuple[str, ...]:
    after, before = edge.get("after"), edge.get("before")
    return (
        text_of(edge, "agent_id"),
        text_of(edge, "state"),
        "" if edge.get("stage") is None else f"stage {edge['stage']}",
        text_of(edge, "before_digest")[:SHORT_DIGEST_CHARS],
        text_of(edge, "digest")[:SHORT_DIGEST_CHARS],
        f"before {_share(before)}",
        f"after {_share(after)}",
        one_line(text_of(edge, "failed")),
    )


def _share(count: JSON) -> str:
    if not is_object(count):
        return "unknown"
    whole = count["calls"] + count["runs"]
    return f"{count['succeeded'] + count['points']:g} of {whole}"
