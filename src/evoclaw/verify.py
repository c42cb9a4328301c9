"""Verify receipts of devices and lineages of genomes: a standalone program to read, copy and run.

    python -m evoclaw.verify FILE [--key AGENT=PUBLICKEY] [--head AGENT=NUMBER|HASH] [--partial]

It needs Python 3.11 and the package `cryptography`, and no other module of EvoClaw. The file has
one JSON object a line (or is one list of them, or one object with a list under `entries`):

    {"type": "key", "agent_id": …, "key": …, "trust": …}
    {"type": "receipt", "body": …, "signature": …, "arguments": …, "result": …}
    a record of a run, as `evoclaw run` writes them
    {"type": "genome", "body": …, "signature": …}

`arguments`, `result` and the records are optional; those in the file are compared. The signature of
a receipt is Ed25519 over the line `evoclaw receipt 1`, a line end, and the body's JSON text. Hashes
are SHA-256: `prev` is the hash of the previous body; arguments and results are hashed as RFC 8785
JSON (integers in full), results without members that are null, false or empty.

An entry of a genome's lineage is signed the same way after the line `evoclaw genome 1`; its `prev`
is the hash of the entry before it, its `digest` that of its genome, empty if the genome is. A key's
approval of a candidate is signed after the line `evoclaw approval 1`: the hash of its proposal.

Exit code: 0 if every entry is valid, 1 if there is a problem, 2 if the file cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, TypeGuard

SIGNATURE_PREFIX = b"evoclaw receipt 1\n"
GENOME_PREFIX = b"evoclaw genome 1\n"
APPROVAL_PREFIX = b"evoclaw approval 1\n"
STAGES = ("static", "validation", "safety", "approval", "shadow", "canary")
"""The stages of the gate, in their order."""
ENTRY_KINDS = ("change", "rollback", "evaluation", "opening", "proposal", "verdict", "campaign")
TEXT_FIELDS = (
    "agent_id key chain prev boot_id request_id run_id tenant tool tool_hash args_sha256 "
    "result_sha256 status error_type isolation grant_sha256"
)
FIELD_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(TEXT_FIELDS.split(), (str,)),
    **dict.fromkeys(("v", "counter", "epoch", "ended_at"), (int,)),
    **dict.fromkeys(("exit_code", "started_at"), (int, type(None))),
}
LINEAGE_FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("agent", "prev", "key", "kind", "digest", "by"), (str,)),
    **dict.fromkeys(("v", "number"), (int,)),
    "at": (int, float),
}
LINEAGE_PROOF = """\
Proven, for every valid lineage: the owner of the named key signed each entry, in this order; each
version has the content and the parent that its entry says; each promoted candidate passed every
stage of the gate, in order, and was approved by a person or by a key that is not the signer's. Not
proven: whose key it is (but with --key); that the lineage ends here (but with --head); that the
genome was used; that the evidence of a stage is true."""
PROOF_STATEMENT = """\
Proven, for every valid receipt: the owner of the device's key signed that this call, with these
arguments, ended with this result, at this position of the chain, and this file shows no other
receipt signed for that position.
Not proven: that the key is the device's (as good as the pairing it comes from); the times (they are
the device's own clock); that the tool did what its result says; what the device did without signing
it; that the chain ends here, unless --head gives its end; that no other receipt is missing."""


@dataclass
class ReceiptEntry:
    """One receipt of the file."""

    line: int
    body: dict[str, Any]
    hash: str
    entry: dict[str, Any]
    problems: list[str] = field(default_factory=list[str])
    compared: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        if "number" in self.body:
            return f"entry {self.body['number']} ({self.hash[:8]}, line {self.line})"
        return f"receipt {self.body['counter']} ({self.hash[:8]}, line {self.line})"


@dataclass
class LineageCandidate:
    """A proposed genome, and what the verdicts on it were so far."""

    proposal: ReceiptEntry
    passed: list[str] = field(default_factory=list[str])
    rejected: bool = False


class Bundle:
    """The content of a file: the key of each device and its origin, receipts, and records."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, str]] = {}
        self.receipts: list[ReceiptEntry] = []
        self.records: list[dict[str, Any]] = []
        self.lineages: dict[str, list[ReceiptEntry]] = {}
        self.problems: list[str] = []


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a JSON value is an object."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Whether a JSON value is a list."""
    return isinstance(value, list)


def object_member(value: Any, name: str) -> dict[str, Any]:
    """A member that is an object itself; an empty object if it is missing."""
    found = value.get(name) if is_object(value) else None
    return found if is_object(found) else {}


def canonical(value: Any) -> str:
    """JSON in the canonical form of RFC 8785, but integers in full."""
    if is_object(value):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(f"{canonical(name)}:{canonical(value[name])}" for name in names) + "}"
    if is_list(value):
        return "[" + ",".join(canonical(item) for item in value) + "]"
    if isinstance(value, float):
        return canonical_number(value)
    return json.dumps(value, ensure_ascii=False)


def canonical_number(value: float) -> str:
    """A number as ECMAScript writes it."""
    if not isfinite(value):
        return "null"
    if value == int(value) and abs(value) < 1e16:
        return str(int(value))
    sign, (mantissa, _, exponent) = "-" if value < 0 else "", repr(abs(value)).partition("e")
    if not exponent:
        return sign + mantissa
    mantissa, power = mantissa.removesuffix(".0"), int(exponent)
    digits = mantissa.replace(".", "")
    if 0 < power < 21:
        return f"{sign}{digits}{'0' * (power + 1 - len(digits))}"
    if -7 < power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    return f"{sign}{mantissa}e{power:+d}"


def digest(value: Any) -> str:
    """The SHA-256 of a value's canonical JSON."""
    return sha256(canonical(value).encode(errors="surrogatepass")).hexdigest()


def result_digest(payload: dict[str, Any]) -> str:
    """The hash of a result, as the device reported it or as the orchestrator stored it."""
    members = {name: of for name, of in payload.items() if name not in ("receipt", "checked")}
    empty: tuple[Any, ...] = ("", [], {})
    omitted = [name for name, of in members.items() if of is None or of is False or of in empty]
    return digest({name: members[name] for name in members.keys() - set(omitted)})


def read_bundle(data: bytes) -> Bundle:
    """Read a file's entries."""
    bundle = Bundle()
    for line, entry in _entries(data):
        if not is_object(entry):
            bundle.problems.append(f"line {line}: not an object")
        elif "event" in entry and "seq" in entry:
            bundle.records.append(entry)
        elif entry.get("type") == "key":
            _add_key(bundle, line, entry)
        elif entry.get("type") in ("receipt", "genome"):
            _read_signed(bundle, line, entry)
        else:
            bundle.problems.append(f"line {line}: neither a key, a receipt, a record nor a genome")
    return bundle


def _entries(data: bytes) -> Iterator[tuple[int, Any]]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8 text") from None
    try:
        document = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        document = None
    if is_object(document) and is_list(document.get("entries")):
        document = document["entries"]
    if is_list(document):
        yield from enumerate(document, 1)
        return
    for number_, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number_, json.loads(line, object_pairs_hook=_unique)
            except (ValueError, RecursionError) as problem:
                raise ValueError(f"line {number_} is not JSON: {problem}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; reject a duplicate member, because parsers differ in which of the two counts."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has two members of the same name")
    return found


def _add_key(bundle: Bundle, line: int, entry: dict[str, Any]) -> None:
    agent, key = entry.get("agent_id"), entry.get("key")
    if not isinstance(agent, str) or not isinstance(key, str):
        bundle.problems.append(f"line {line}: the key entry lacks agent_id or key")
    elif agent in bundle.keys and bundle.keys[agent][0] != key:
        bundle.problems.append(f"line {line}: a second key for {agent!r}")
    else:
        trust = str(entry.get("trust") or "origin not given")
        bundle.keys[agent] = key, f"as claimed by the file: {trust}"


def _read_signed(bundle: Bundle, line: int, entry: dict[str, Any]) -> None:
    """Add a receipt, or an entry of a lineage."""
    text, signature = entry.get("body"), entry.get("signature")
    is_receipt = entry["type"] == "receipt"
    try:
        if not isinstance(text, str) or not isinstance(signature, str):
            raise ValueError("body or signature is missing")
        body = json.loads(text, object_pairs_hook=_unique)
        if not is_object(body) or canonical(body) != text:
            raise ValueError("the body is not canonical JSON")
        (_check_fields if is_receipt else _check_lineage_fields)(body)
    except (ValueError, RecursionError) as problem:
        bundle.problems.append(f"line {line}: not a {entry['type']}: {problem}")
        return
    found = ReceiptEntry(line, body, sha256(text.encode()).hexdigest(), entry)
    chain = bundle.receipts if is_receipt else bundle.lineages.setdefault(body["agent"], [])
    chain.append(found)


def _check_lineage_fields(body: dict[str, Any]) -> None:
    for name, kinds in LINEAGE_FIELDS.items():
        if not isinstance(body.get(name), kinds) or isinstance(body[name], bool):
            raise ValueError(f"{name} is missing or has the wrong type")
    if body["v"] != 1 or not is_object(body.get("genome", {})):
        raise ValueError("unknown version, or a genome that is not an object")
    if body["kind"] not in ENTRY_KINDS:
        raise ValueError(f"unknown kind {body['kind']!r}")


def _check_fields(body: dict[str, Any]) -> None:
    if wrong := sorted(body.keys() ^ FIELD_TYPES.keys()):
        raise ValueError(f"missing or unknown: {', '.join(wrong)}")
    for name, kinds in FIELD_TYPES.items():
        if not isinstance(body[name], kinds) or isinstance(body[name], bool):
            raise ValueError(f"{name} has the wrong type")
    if body["v"] != 1 or body["counter"] < 0:
        raise ValueError("unknown version, or a negative counter")
    if not body["counter"] and (body["chain"] or body["prev"]):
        raise ValueError("counter 0 is outside any chain, but chain or prev is set")


def check_receipt(receipt: ReceiptEntry, keys: dict[str, tuple[str, str]]) -> None:
    """Check one receipt by itself: its key, its signature, its arguments and its result."""
    body, entry = receipt.body, receipt.entry
    key = keys.get(body["agent_id"])
    if key is None:
        receipt.problems.append(f"no key for {body['agent_id']!r}; give one with --key")
    elif key[0] != body["key"]:
        receipt.problems.append("signed with a key that is not the device's")
    if not _is_signature_valid(body["key"], entry["signature"], entry["body"]):
        receipt.problems.append("the signature is wrong")
    # A call that was cancelled before it reached the device has a receipt without arguments.
    if "arguments" in entry and body["args_sha256"] not in ("", digest(entry["arguments"])):
        receipt.problems.append("the arguments differ from those that were signed")
    if "result" in entry and body["result_sha256"] != result_digest(object_member(entry, "result")):
        receipt.problems.append("the result differs from the one that was signed")
    receipt.compared += [what for what in ("arguments", "result") if what in entry]


def _is_signature_valid(
    key: str, signature: str, body: str, prefix: bytes = SIGNATURE_PREFIX
) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        public = Ed25519PublicKey.from_public_bytes(_decoded(key))
        public.verify(_decoded(signature), prefix + body.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def _decoded(text: str) -> bytes:
    """The bytes of base64url; only of the one text that encodes them, or it could be changed."""
    data = urlsafe_b64decode(text + "==")  # padding beyond what is needed is ignored
    if urlsafe_b64encode(data).rstrip(b"=").decode() != text:
        raise ValueError("not base64url")
    return data


def check_chain(receipts: list[ReceiptEntry], *, partial: bool) -> list[str]:
    """The gaps, forks and repetitions of a chain, in the order of the file."""
    found: list[str] = []
    before: ReceiptEntry | None = None
    for claim in receipts:
        counter = claim.body["counter"]
        last = 0 if before is None else before.body["counter"]
        if before is not None and counter == last:
            same = before.hash == claim.hash
            what = "occurs twice (a replay)" if same else "occurs twice and differs (a fork)"
            found.append(f"{claim} {what}")
        elif counter < last:
            found.append(f"{claim} is out of order, after receipt {last}")
        elif counter > last + 1:
            if not partial:
                found.append(f"receipts {last + 1} to {counter - 1} are missing before {claim}")
        elif claim.body["prev"] != ("" if before is None else before.hash):
            found.append(f"{claim} does not refer to the hash of the receipt before it")
        before = claim
    return found


def check_lineage(entries: list[ReceiptEntry], key: str | None) -> list[str]:
    """The problems of a lineage: signatures, the chain, and what each version claims to be."""
    found: list[str] = []
    before: ReceiptEntry | None = None
    versions: list[dict[str, Any]] = [{}]  # version 0 is the configuration: it sets nothing
    current = ""
    candidates: dict[int, LineageCandidate] = {}
    for number, entry in enumerate(entries, 1):
        body, genome = entry.body, object_member(entry.body, "genome")
        if key is not None and body["key"] != key:
            found.append(f"{entry} was signed with a key other than the given one")
        if not _is_signature_valid(
            body["key"], entry.entry["signature"], entry.entry["body"], GENOME_PREFIX
        ):
            found.append(f"{entry}: the signature is wrong")
        if body["number"] != number:
            found.append(f"{entry} is at position {number}: an entry is missing or repeated")
        elif body["prev"] != ("" if before is None else before.hash):
            found.append(f"{entry} does not refer to the hash of the entry before it")
        if body["digest"] != (digest(genome) if genome else ""):
            found.append(f"{entry}: its digest is not that of its genome")
        found += _check_candidate(entry, candidates, current)
        if body["kind"] in ("change", "rollback"):
            found += _check_version(entry, versions, current)
            versions.append(genome)
            current = body["digest"]
        before = entry
    return found


def _check_candidate(
    entry: ReceiptEntry, candidates: dict[int, LineageCandidate], current: str
) -> list[str]:
    """The problems of a proposal, of a verdict on one, or of its promotion."""
    body = entry.body
    kind, number = body["kind"], body.get("candidate")
    if kind == "proposal":
        candidates[body["number"]] = LineageCandidate(entry)
        return [] if body.get("parent") == current else [f"{entry}: its parent is not current"]
    if kind != "verdict" and (kind == "rollback" or number is None):
        return []
    known = candidates.get(number) if isinstance(number, int) else None
    if known is None:
        return [f"{entry} is about candidate {number}, which was not proposed before"]
    found: list[str] = []
    if body["digest"] != known.proposal.body["digest"]:
        found.append(f"{entry}: its genome is not that of candidate {number}")
    if kind == "verdict":
        return found + _check_verdict(entry, known)
    if missing := [stage for stage in STAGES if stage not in known.passed]:
        found.append(f"{entry} promotes candidate {number}, which did not pass {missing[0]}")
    if known.rejected:
        found.append(f"{entry} promotes candidate {number}, which was rejected")
    if known.proposal.body.get("parent") != current:
        found.append(f"{entry} promotes candidate {number}, which was compared with another genome")
    return found


def _check_verdict(entry: ReceiptEntry, candidate: LineageCandidate) -> list[str]:
    body = entry.body
    stage, passed = body.get("stage"), body.get("passed")
    if stage not in STAGES or passed not in (True, False, None):
        return [f"{entry}: unknown stage or verdict"]
    if passed is False:
        candidate.rejected = True
        return []
    found: list[str] = []
    if candidate.rejected:
        found.append(f"{entry} is on a candidate that was rejected before")
    before = [name for name in STAGES[: STAGES.index(stage)] if name not in candidate.passed]
    if before or stage in candidate.passed:
        found.append(f"{entry}: the stage {stage} is out of order")
    if passed:
        candidate.passed.append(stage)
        found += _check_approval(entry, candidate) if stage == "approval" else []
    return found


def _check_approval(entry: ReceiptEntry, candidate: LineageCandidate) -> list[str]:
    """The problems of an approval: by a person, or by another key than that of the lineage."""
    proof = object_member(entry.body, "scores")
    if proof.get("approval") == "person":
        return []
    key, signature = proof.get("key"), proof.get("signature")
    if proof.get("approval") != "key" or not isinstance(key, str) or not isinstance(signature, str):
        return [f"{entry}: the approval is neither a person's nor a key's"]
    if candidate.proposal.body.get("untrusted"):
        return [f"{entry}: a key approved text of untrusted origin; only a person can"]
    if key in (entry.body["key"], candidate.proposal.body["key"]):
        return [f"{entry}: it was approved with the key that signs the lineage"]
    if not _is_signature_valid(key, signature, candidate.proposal.hash, APPROVAL_PREFIX):
        return [f"{entry}: the signature of the approval is wrong"]
    return []


def _check_version(entry: ReceiptEntry, versions: list[dict[str, Any]], current: str) -> list[str]:
    body = entry.body
    restored: Any = body.get("restored")
    found: list[str] = []
    if body.get("version") != len(versions):
        found.append(f"{entry} makes version {body.get('version')}, not {len(versions)}")
    if body.get("parent") != current:
        found.append(f"{entry}: its parent is not the version before it")
    if body["kind"] == "rollback":
        known = isinstance(restored, int) and 0 <= restored < len(versions)
        old: dict[str, Any] | None = versions[restored] if known else None
        if old != object_member(body, "genome"):
            found.append(f"{entry} is not the version that it claims to restore")
    return found


def check_head(agent: str, receipts: list[ReceiptEntry], head: str) -> str:
    """Compare the end of a device's chains with the expected head; empty if they agree."""
    if head.isdigit() and len(head) < 20:
        top = max((claim.body["counter"] for claim in receipts), default=0)
        return (
            ""
            if top == int(head)
            else f"{agent}: the last receipt is {top}, not {head}: receipts are missing at the end"
        )
    if any(claim.hash.startswith(head.lower()) for claim in receipts[-1:]):
        return ""
    return (
        f"{agent}: the last receipt is not {head[:16]}…: receipts are missing at the end, "
        "or this is another chain"
    )


def check_records(bundle: Bundle) -> list[str]:
    """Compare the records of runs with the receipts of their calls."""
    started: dict[str, dict[str, Any]] = {}
    hashes = {claim.hash: claim for claim in bundle.receipts}
    found: list[str] = []
    for record in bundle.records:
        event = object_member(record, "event")
        if event.get("type") == "call_started":
            started[event.get("call_id", "")] = event
        elif event.get("type") == "call_finished":
            found += _check_record(record, object_member(event, "result"), started, hashes)
    return found


def _check_record(
    record: dict[str, Any],
    result: dict[str, Any],
    started: dict[str, dict[str, Any]],
    hashes: dict[str, ReceiptEntry],
) -> list[str]:
    where = f"run {record.get('run_id')}, record {record.get('seq')}"
    receipt = object_member(object_member(result, "details"), "receipt")
    call = started.get(result.get("call_id", ""))
    if receipt.get("state") != "valid" or call is None:
        return []
    claim = hashes.get(receipt.get("hash", ""))
    if claim is None:
        return [f"{where}: its receipt {receipt.get('id')} is not in the file"]
    if (result.get("error") is None) != (claim.body["status"] == "success"):
        return [f"{where}: the record and {claim} differ in whether it succeeded"]
    same_tool = claim.body["tool"] == result.get("name")
    if same_tool and claim.body["args_sha256"] != digest(call.get("arguments")):
        return [f"{where}: the call had other arguments than those of {claim}"]
    claim.compared.append("record")
    return []


def printable(text: object) -> str:
    """A text without control characters, safe to print on a terminal."""
    return "".join(char if char.isprintable() else "�" for char in str(text))[:200]


def _describe(receipt: ReceiptEntry) -> str:
    body = receipt.body
    when = datetime.fromtimestamp(min(max(body["ended_at"], 0), 2**42) / 1000, UTC)
    code = "" if body["exit_code"] is None else f", exit code {body['exit_code']}"
    outcome = "succeeded" if body["status"] == "success" else body["error_type"] or body["status"]
    compared = f"; compared: {', '.join(receipt.compared)}" if receipt.compared else ""
    inside = f"; in {body['isolation']}" if body["isolation"] else ""
    return (
        f"  {body['counter']:>6}  {receipt.hash[:8]}  {when:%Y-%m-%d %H:%M:%S}Z  {body['tool']}: "
        f"{outcome}{code}; request {body['request_id']}{inside}{compared}"
    )


def verify(
    bundle: Bundle, heads: dict[str, str], *, partial: bool = False
) -> tuple[list[str], list[str]]:
    """The report on a bundle, and its problems."""
    report, heads = list[str](), dict(heads)
    wrong = [f"the file: {problem}" for problem in bundle.problems]
    chains: dict[tuple[str, str], list[ReceiptEntry]] = {}
    for claim in bundle.receipts:
        check_receipt(claim, bundle.keys)
        chains.setdefault((claim.body["agent_id"], claim.body["chain"]), []).append(claim)
    wrong += check_records(bundle)
    for (agent, chain), claims in chains.items():
        key, origin = bundle.keys.get(agent, ("none", "not given"))
        inside = f"chain {chain}" if chain else "outside a chain"
        report.append(f"{agent}: {len(claims)} receipts, {inside}")
        report.append(f"  key {key} ({origin})")
        report += [_describe(claim) for claim in claims]
        bad = [f"{claim}: {problem}" for claim in claims for problem in claim.problems]
        bad += check_chain(claims, partial=partial) if chain else []
        report.append(f"  first problem: {bad[0]}" if bad else "  complete: every receipt is valid")
        wrong += [f"{agent}: {problem}" for problem in bad]
    for agent, entries in bundle.lineages.items():
        given = bundle.keys.get(agent)
        bad = check_lineage(entries, None if given is None else given[0])
        report.append(f"{agent}: {len(entries)} entries of its genome's lineage")
        report.append(f"  first problem: {bad[0]}" if bad else "  complete: every entry is valid")
        head = heads.pop(agent, "")
        if head and not entries[-1].hash.startswith(head.lower()):
            bad.append(f"the last entry is not {head[:16]}: entries are missing at the end")
        wrong += [f"{agent}: {problem}" for problem in bad]
    for agent, head in heads.items():
        chained = [claim for claim in bundle.receipts if claim.body["chain"]]
        mine = [claim for claim in chained if claim.body["agent_id"] == agent]
        wrong += filter(None, [check_head(agent, mine, head)])
    if not (bundle.receipts or bundle.lineages):
        wrong.append("the file: it contains neither a receipt nor a lineage")
    return report, wrong


def _pairs(options: list[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (pair.partition("=") for pair in options)]


def main(arguments: list[str] | None = None) -> int:
    """Verify one file."""
    parser = argparse.ArgumentParser(prog="verify", description="Verify receipts and lineages")
    parser.add_argument(
        "file", help="File of `evoclaw receipts export` or `evoclaw genome export`; `-`: stdin"
    )
    parser.add_argument(
        "--key", action="append", default=[], metavar="AGENT=KEY", help="Public key of a device"
    )
    parser.add_argument(
        "--head",
        action="append",
        default=[],
        metavar="AGENT=NUMBER|HASH",
        help="Expected last receipt of a device",
    )
    parser.add_argument(
        "--partial", action="store_true", help="Accept gaps: the file has only a part of each chain"
    )
    options = parser.parse_args(arguments)
    try:
        file = options.file
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        bundle = read_bundle(data)
        bundle.keys |= {name: (key, "given with --key") for name, key in _pairs(options.key)}
        report, wrong = verify(bundle, dict(_pairs(options.head)), partial=options.partial)
    except (OSError, ValueError, RecursionError) as problem:
        sys.stderr.write(f"cannot read {printable(options.file)}: {printable(problem)}\n")
        return 2
    lines = [printable(line) for line in report] + [
        f"WRONG: {printable(problem)}" for problem in wrong
    ]
    proofs = [PROOF_STATEMENT] * bool(bundle.receipts) + [LINEAGE_PROOF] * bool(bundle.lineages)
    what = "receipts" if bundle.receipts else "entries"
    lines += [f"{len(wrong)} problems"] if wrong else [*proofs, f"all {what} are valid"]
    sys.stdout.write("\n".join(lines) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
