"""`evoclaw evolve`: run a campaign, and list, approve, reject and sign candidates."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from evoclaw.cli import exits, service_api
from evoclaw.cli.approvals import identify_answerer
from evoclaw.cli.client import ServiceClient, ServiceNotRunning, ServiceRefused, open_client
from evoclaw.cli.evaluation import current_user
from evoclaw.cli.options import FILE, CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.terminal_text import clean, one_line, print_table
from evoclaw.core.errors import AgentNotFound, ConfigError
from evoclaw.core.messages import JSON

if TYPE_CHECKING:
    from evoclaw.core.evolution_settings import AgentEvolution
    from evoclaw.evolution.campaign_status import CampaignStatus
    from evoclaw.evolution.candidates import Candidate
    from evoclaw.evolution.lineage import GenomeLineage
    from evoclaw.evolution.lineage_audit import LineageAudit
    from evoclaw.evolution.lineage_entries import LineageEntry
    from evoclaw.wiring.campaigns import CampaignParts

SHORT_DIGEST_CHARS = 12
_REQUESTED = "asked the proposers for another round"


class EvolveGroup(CommandGroup):
    """`evoclaw evolve AGENT` is `evoclaw evolve run AGENT`."""

    implied = "run"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the implied command if the first word is no command."""
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = [self.implied, *args]
        return super().parse_args(ctx, args)


@click.group(cls=EvolveGroup)
def evolve() -> None:
    """Run a campaign for an agent, and decide on its candidates."""


_AGENT = click.argument("agent", help="The name of the agent")
_NUMBER = click.argument("number", type=int, help="The number of the candidate, as `list` shows it")


@evolve.command("run", help="Take the next steps of the campaign now (the default)")
@_AGENT
@click.option("--dry-run", is_flag=True, help="Print the next step, and change nothing")
@json_option()
def _run(agent: str, *, dry_run: bool, as_json: bool) -> int:
    return asyncio.run(_campaign(agent, dry_run=dry_run, as_json=as_json))


@evolve.command("list", help="List the candidates of an agent and their stages")
@_AGENT
@json_option()
def _list(agent: str, *, as_json: bool) -> int:
    async def show(lineage: GenomeLineage, _: LineageAudit) -> None:
        import time

        from evoclaw.evolution.campaign import describe_next, next_steps

        settings, status = _settings(agent), ""
        entries = await lineage.history(agent)
        if settings.is_on:
            status = describe_next(next_steps(entries, settings, time.time()))
        _print_candidates(entries, agent, status, as_json=as_json)

    return _with_lineage(agent, show)


@evolve.command("approve", help="Approve a candidate that waits for it, as a person or by a key")
@_AGENT
@_NUMBER
@click.option("--reason", default="", metavar="TEXT", show_default=False, help="Say why")
@click.option(
    "--signature", metavar="KEY:SIGNATURE", help="Approve by a signature of `evoclaw evolve sign`"
)
@json_option()
def _approve(agent: str, number: int, reason: str, signature: str | None, *, as_json: bool) -> int:
    async def decide(lineage: GenomeLineage, audit: LineageAudit) -> None:
        from evoclaw.evolution import approval

        if signature is None:
            _check_person()
            entry = await approval.approve(lineage, agent, number, by=current_user(), reason=reason)
        else:
            key, _, signed = signature.partition(":")
            entry = await approval.approve_by_key(
                lineage,
                agent,
                number,
                key=key,
                signature=signed,
                accepted=_settings(agent).approver_keys,
            )
        await audit.record(entry)
        _print_decision(entry, "approved", as_json=as_json)

    return _with_lineage(agent, decide)


@evolve.command("reject", help="Reject a candidate, at whatever stage it is")
@_AGENT
@_NUMBER
@click.option("--reason", required=True, metavar="TEXT", help="Say why, for the lineage")
@json_option()
def _reject(agent: str, number: int, reason: str, *, as_json: bool) -> int:
    async def decide(lineage: GenomeLineage, audit: LineageAudit) -> None:
        from evoclaw.evolution import approval

        _check_person()
        entry = await approval.reject(lineage, agent, number, by=current_user(), reason=reason)
        await audit.record(entry)
        _print_decision(entry, "rejected", as_json=as_json)

    return _with_lineage(agent, decide)


@evolve.command("sign", help="Sign the hash of a candidate with a key of your own, on any machine")
@click.argument(
    "hash_", metavar="HASH", help="The hash of the candidate, as `list --json` shows it"
)
@click.option(
    "--key", type=FILE, required=True, metavar="FILE", help="Read the key, or create it there"
)
@json_option()
def _sign(hash_: str, key: Path, *, as_json: bool) -> int:
    from evoclaw.trust.receipts import DeviceKey

    if len(hash_) != 64 or not set(hash_) <= set("0123456789abcdef"):
        raise ConfigError(f"{hash_[:80]!r} is not a hash; `evoclaw evolve list --json` shows it")
    loaded = DeviceKey.load_or_create(key)
    signature = loaded.sign_approval(hash_)
    if as_json:
        print_out({"key": loaded.public_key, "signature": signature})
    else:
        print_out(f"{loaded.public_key}:{signature}")
    return exits.OK


async def _campaign(agent: str, *, dry_run: bool, as_json: bool) -> int:
    async with AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(open_client(os.environ))
            found = await client.get(service_api.api_path("agents", agent, "campaign"))
        except ServiceNotRunning:
            if os.environ.get("EVOCLAW_URL"):
                raise
            return await _drive(agent, dry_run=dry_run, as_json=as_json)
        return await _ask_service(client, agent, found, dry_run=dry_run, as_json=as_json)


async def _ask_service(
    client: ServiceClient, agent: str, campaign: JSON, *, dry_run: bool, as_json: bool
) -> int:
    """Show what the service does next, or have it ask the proposers again."""
    from evoclaw.evolution.campaign_status import CampaignStatus
    from evoclaw.evolution.lineage_entries import LineageEntry

    status = msgspec.convert(campaign, CampaignStatus)
    _check_on(status)
    if dry_run:
        text = status.summary
    else:
        _check_person()
        try:
            await client.post(service_api.api_path("agents", agent, "campaign"))
            text = f"{_REQUESTED}; see `evoclaw evolve list {agent}`"
        except ServiceRefused as refused:
            if refused.code != "busy":
                raise
            text = f"the service drives this campaign; {refused}"
    found = await client.get(service_api.api_path("genomes", agent, "history"))
    entries = msgspec.convert(service_api.as_items(found), list[LineageEntry])
    _print_candidates(entries, agent, text, as_json=as_json)
    return exits.OK


async def _drive(agent: str, *, dry_run: bool, as_json: bool) -> int:
    """Drive the campaign in this process, as no service runs here."""
    from evoclaw.core.errors import ConfigError, EvoClawError
    from evoclaw.wiring.campaigns import campaigns, evolution_lease, open_campaign_parts

    async with open_campaign_parts(os.environ) as parts:
        _check_agent(agent, tuple(parts.agents))
        status = await campaigns(lambda: parts).status(agent)
        if status.on and not dry_run and (problem := parts.problem(agent)):
            raise ConfigError(problem)
        _check_on(status)
        if dry_run:
            entries = await parts.lineage.history(agent)
            _print_candidates(entries, agent, status.summary, as_json=as_json)
            return exits.OK
        engine, lease = parts.engine(agent), evolution_lease(agent, parts.database)
        if not await lease.try_acquire():
            why = await _ask_driver(parts, agent)
        else:
            done: list[str] = []

            async def work() -> None:
                done.append(await engine.run(again=True))

            try:
                await lease.hold(work())
            except EvoClawError as problem:
                print_err(clean(str(problem)))
                return exits.FAILED
            finally:
                await lease.release()
            why = done[0] if done else "another process took the campaign over"
        _print_candidates(await parts.lineage.history(agent), agent, why, as_json=as_json)
    return exits.OK


async def _ask_driver(parts: CampaignParts, agent: str) -> str:
    """Ask the process that drives the campaign, perhaps on another machine, for another round."""
    from evoclaw.evolution.campaign_status import CampaignStopped, RoundRefused
    from evoclaw.wiring.campaigns import campaigns

    _check_person()
    try:
        entry = await campaigns(lambda: parts).request_round(agent, by=current_user())
    except CampaignStopped:
        raise
    except RoundRefused as refused:
        return f"another process drives this campaign; {refused}"
    await parts.audit.record(entry)
    return f"{_REQUESTED}; another process drives this campaign"


def _check_on(status: CampaignStatus) -> None:
    """Refuse an agent that does not evolve; print what is missing for one that does."""
    if not status.on:
        raise ConfigError(status.reason)
    for problem in status.problems:
        print_err(clean(problem))


def _print_candidates(
    entries: Iterable[LineageEntry], agent: str, status: str, *, as_json: bool
) -> None:
    from evoclaw.evolution.candidates import fold_candidates

    found = list(fold_candidates(entries).values())
    if as_json:
        print_out({"agent": agent, "status": status, "candidates": [_row(c) for c in found]})
        return
    rows = [
        (
            str(candidate.number),
            str(candidate.stage or candidate.state),
            candidate.proposal.digest[:SHORT_DIGEST_CHARS],
            candidate.proposal.by,
            one_line(_last_reason(candidate)),
        )
        for candidate in found
    ]
    print_table(rows, f"{clean(agent)} has no candidates")
    if status:
        print_out(clean(status))


def _row(candidate: Candidate) -> dict[str, JSON]:
    from evoclaw.evolution.approval import person_needed
    from evoclaw.evolution.candidates import BROKEN, FIXED, changed_cases
    from evoclaw.evolution.lineage_entries import entry_hash

    proposal = candidate.proposal
    return {
        "number": candidate.number,
        "state": str(candidate.state),
        "stage": None if candidate.stage is None else str(candidate.stage),
        "hash": entry_hash(proposal),
        "digest": proposal.digest,
        "parent": proposal.parent,
        "genome": proposal.genome,
        "by": proposal.by,
        "reason": proposal.reason,
        "runs": list(proposal.runs),
        "fixed": list(changed_cases(proposal, FIXED)),
        "broken": list(changed_cases(proposal, BROKEN)),
        "person_needed": person_needed(candidate),
        "results": {
            str(stage): msgspec.to_builtins(result) for stage, result in candidate.results.items()
        },
    }


def _last_reason(candidate: Candidate) -> str:
    """Why it was rejected, or why it was proposed."""
    reasons = [result.reason for result in candidate.results.values() if result.reason]
    return reasons[-1] if reasons else candidate.proposal.reason


def _print_decision(entry: LineageEntry, what: str, *, as_json: bool) -> None:
    if as_json:
        print_out(msgspec.to_builtins(entry))
    else:
        print_out(f"candidate {entry.candidate} of {clean(entry.agent)} {what}")


def _with_lineage(
    agent: str,
    work: Callable[[GenomeLineage, LineageAudit], Awaitable[None]],
) -> int:
    async def run() -> None:
        from evoclaw.wiring.agents import defined_agents
        from evoclaw.wiring.evaluation import open_audited_lineage

        _check_agent(agent, tuple(defined_agents(os.environ)))
        async with open_audited_lineage(os.environ) as (lineage, audit):
            await work(lineage, audit)

    asyncio.run(run())
    return exits.OK


def _settings(agent: str) -> AgentEvolution:
    from evoclaw.wiring.agents import defined_agents

    return defined_agents(os.environ)[agent].evolution


def _check_agent(agent: str, known: tuple[str, ...]) -> None:
    if agent not in known:
        raise AgentNotFound(agent, known)


def _check_person() -> None:
    if why := identify_answerer().refusal_reason("local"):
        raise ConfigError(why)
