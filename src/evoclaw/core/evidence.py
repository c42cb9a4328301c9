"""Evidence-bound completion: a final answer must cite the receipts of what was done.

Nothing is inferred from prose. The rules: every cited receipt must be a valid receipt of this run;
the receipt of every successful call with side effects must be cited. The loop itself appends what
the receipts prove to the answer, so that the user can tell an unproven claim from a proven one.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core import wording
from evoclaw.core.events import CallFinished, Event
from evoclaw.core.messages import (
    JSON,
    Reply,
    TextBlock,
    ToolResult,
    UserMessage,
    is_array,
    is_object,
)
from evoclaw.core.state import RunState
from evoclaw.core.toolset import Toolset

MAX_EVIDENCE_REQUESTS = 2
"""How often the model is asked again when its answer lacks evidence."""
_LINE = re.compile(r"^[\s*_#>`-]*EVIDENCE[*_`]*\s*:(.*)$", re.IGNORECASE | re.MULTILINE)
_ID = re.compile(r"\br\d+-[0-9a-f]{8}\b")
_INLINE = re.compile(r"\[(?:receipt\s+)?(r\d+-[0-9a-f]{8})\b[^\]\n]*\]")


class ReceiptProof(Struct, frozen=True):
    """One valid receipt that an answer can cite."""

    id: str
    tool: str
    agent: str
    succeeded: bool
    """Whether the device signed that the call succeeded."""


class RunEvidence(Struct, frozen=True):
    """What a run did, according to its receipts."""

    proofs: dict[str, ReceiptProof]
    """All valid receipts of this run, by id."""
    effects: tuple[ReceiptProof, ...]
    """The receipts of calls that had side effects and succeeded."""
    failed: tuple[str, ...]
    """Tools with side effects whose calls failed, each with the kind of error."""
    unproven: tuple[str, ...]
    """Tools with side effects whose calls succeeded without a valid receipt."""


async def show_receipt_ids(
    events: AsyncGenerator[Event, None], state: RunState, tools: Toolset
) -> AsyncGenerator[Event, None]:
    """Yield the same events; append the ids of their receipts to the results of calls."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, CallFinished):
                event = CallFinished(_append_receipt_ids(event.result, state.run_id, tools))
            yield event


def _append_receipt_ids(result: ToolResult, run_id: str, tools: Toolset) -> ToolResult:
    acts = _has_side_effects(result, tools)
    lines = [wording.receipt(p.id, done=p.succeeded, acts=acts) for p in _proofs(result, run_id)]
    block = TextBlock("\n".join(lines))
    # The results of a replayed run have them already.
    if not lines or result.blocks[-1:] == (block,):
        return result
    return replace(result, blocks=(*result.blocks, block))


def collect_evidence(state: RunState, tools: Toolset) -> RunEvidence:
    """What this run did, and what its receipts prove."""
    proofs: dict[str, ReceiptProof] = {}
    acted: list[ReceiptProof] = []
    failed: list[str] = []
    unproven: list[str] = []
    for result in _results(state):
        found = _proofs(result, state.run_id)
        proofs |= {proof.id: proof for proof in found}
        if not _has_side_effects(result, tools):
            continue
        done = [proof for proof in found if proof.succeeded]
        acted += done
        if result.error is not None:
            failed.append(f"{result.name} ({result.error})")
        elif not done:
            unproven.append(result.name)
    return RunEvidence(proofs, tuple(acted), tuple(failed), tuple(unproven))


def missing_evidence(state: RunState, tools: Toolset) -> str:
    """What evidence the answer lacks, in words; empty if it is complete."""
    reply = state.last
    if not isinstance(reply, Reply) or not reply.text.strip():
        return ""
    known = collect_evidence(state, tools)
    listed = {id_ for line in _LINE.findall(reply.text) for id_ in _ID.findall(line)}
    cited = listed | set(_INLINE.findall(reply.text))
    if invented := sorted(cited - known.proofs.keys()):
        return wording.not_receipts(invented)
    if undone := sorted(id_ for id_ in listed if not known.proofs[id_].succeeded):
        return wording.not_done(undone)
    if missing := [proof.id for proof in known.effects if proof.id not in listed]:
        return wording.not_cited(missing)
    return ""


def evidence_request(state: RunState, tools: Toolset) -> str:
    """The prompt for an answer that lacks evidence; empty if none is due, or the limit is met."""
    problem = missing_evidence(state, tools)
    if not problem or state.closing or count_evidence_requests(state) >= MAX_EVIDENCE_REQUESTS:
        return ""
    return wording.EVIDENCE + problem + wording.EVIDENCE_FORM


def count_evidence_requests(state: RunState) -> int:
    """How often the model was asked for evidence in this run."""
    return sum(
        isinstance(message, UserMessage) and message.text.startswith(wording.EVIDENCE)
        for message in list(state.history)[len(state.opening) :]
    )


def answers_evidence_request(state: RunState) -> bool:
    """Whether the last reply answers a request for evidence."""
    before = state.history[len(state.history) - 2] if len(state.history) > 1 else None
    return isinstance(before, UserMessage) and before.text.startswith(wording.EVIDENCE)


def strip_evidence_line(text: str) -> str:
    """An answer without its `EVIDENCE:` line."""
    return _LINE.sub("", text).strip()


def append_evidence_summary(text: str, state: RunState, tools: Toolset, *, answered: bool) -> str:
    """The text for the user: the answer, followed by what the receipts prove."""
    known = collect_evidence(state, tools)
    problem = missing_evidence(state, tools) if answered else ""
    text = wording.unproven(problem) if problem else strip_evidence_line(text)
    proven = [f"{proof.tool} on {proof.agent} ({proof.id})" for proof in known.effects]
    return f"{text}\n\n{wording.proven(proven, known.failed, known.unproven)}"


def _results(state: RunState) -> Iterator[ToolResult]:
    for message in list(state.history)[len(state.opening) :]:
        if isinstance(message, ToolResult):
            yield message


def _proofs(result: ToolResult, run_id: str) -> list[ReceiptProof]:
    """The receipts of a result that are valid and belong to this run."""
    several: JSON = result.details.get("receipts")
    receipts: list[JSON] = [
        result.details.get("receipt"),
        *(several if is_array(several) else ()),
    ]
    found: list[ReceiptProof] = []
    for receipt in receipts:
        if not is_object(receipt) or receipt.get("state") != "valid":
            continue
        id_, agent = str(receipt.get("id", "")), str(receipt.get("agent", ""))
        if _ID.fullmatch(id_) and str(receipt.get("request_id", "")).startswith(f"{run_id}."):
            found.append(ReceiptProof(id_, result.name, agent, receipt.get("status") == "success"))
    return found


def _has_side_effects(result: ToolResult, tools: Toolset) -> bool:
    """Whether a call had side effects; assumed for a tool that is no longer available."""
    found = tools.find(result.name)
    return found is None or found[0].has_side_effects
