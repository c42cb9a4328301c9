"""The stand-alone verifier: whatever was changed, it says so and what; alone it needs nothing."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from evoclaw import verify
from evoclaw.trust.receipts import CallFacts, DeviceKey, Receipt, SignedReceipt, new_receipt

Lines = list[dict[str, Any]]
PI, HUB = DeviceKey(bytes(range(32))), DeviceKey(bytes(range(1, 33)))
ARGUMENTS = {"command": "ls", "n": 1.5}


def result(n: int) -> dict[str, Any]:
    return {"status": "success", "tool": "bash", "result": f"out {n}", "exit_code": 0, "n": 0.25}


def made(
    key: DeviceKey, agent: str, n: int, prev: str, chain: str
) -> tuple[Receipt, SignedReceipt]:
    facts = CallFacts(
        agent_id=agent,
        boot_id="b1",
        request_id=f"run.{n}.0.1",
        run_id="run",
        tenant="",
        epoch=1,
        tool="bash",
        tool_hash="00ff",
        arguments=ARGUMENTS,
        started_at=1.0,
        ended_at=2.0 + n,
    )
    found = new_receipt(facts, result(n), key.public_key)
    found = replace(found, counter=n, chain=chain if n else "", prev=prev)
    return found, key.sign(found)


def chain(key: DeviceKey, agent: str, many: int, name: str = "c1") -> Lines:
    lines: Lines = [{"type": "key", "agent_id": agent, "key": key.public_key, "trust": "pairing"}]
    prev = ""
    for n in range(1, many + 1):
        _, signed = made(key, agent, n, prev, name)
        prev = signed.hash
        lines.append(
            {
                "type": "receipt",
                "body": signed.body,
                "signature": signed.signature,
                "arguments": ARGUMENTS,
                "result": {**result(n), "stderr": ""},
            }
        )
    return lines


def bundle() -> Lines:
    return chain(PI, "pi", 5) + chain(HUB, "hub", 3)


def checked(lines: Lines, *options: str, tmp: Path) -> tuple[int, str]:
    path = tmp / "bundle.jsonl"
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    done = subprocess.run(
        [sys.executable, "-m", "evoclaw.verify", str(path), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def wrong(lines: Lines, heads: dict[str, str] | None = None, *, partial: bool = False) -> list[str]:
    data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    return verify.verify(verify.read_bundle(data), heads or {}, partial=partial)[1]


@pytest.mark.process
def test_a_complete_bundle_verifies_and_the_report_says_what_is_proved(tmp_path: Path) -> None:
    code, said = checked(bundle(), "--head", "pi=5", tmp=tmp_path)
    assert code == 0, said
    assert "pi: 5 receipts, chain c1" in said
    assert said.count("complete: every receipt is valid") == 2
    assert "as claimed by the file: pairing" in said
    assert "compared: arguments, result" in said
    assert "as good as the pairing" in said
    assert "the device's own clock" in said
    assert said.endswith("all receipts are valid\n")


@pytest.mark.process
def test_the_verifier_runs_as_a_single_file_without_the_package(tmp_path: Path) -> None:
    alone = tmp_path / "verify.py"
    shutil.copy(verify.__file__, alone)
    path = tmp_path / "bundle.json"
    path.write_text(json.dumps({"entries": bundle()}))
    # Isolated, and with every way to the package barred.
    code = (
        "import sys, runpy\n"
        "class Bar:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.partition('.')[0] in ('evoclaw', 'msgspec'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Bar())\n"
        f"sys.argv = ['verify.py', {str(path)!r}]\n"
        f"runpy.run_path({str(alone)!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("all receipts are valid\n")


def test_the_verifier_imports_only_the_standard_library_and_cryptography() -> None:
    names: set[str] = set()
    for node in ast.walk(ast.parse(Path(verify.__file__).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    assert names - sys.stdlib_module_names == {"cryptography"}


BODY = sorted(json.loads(bundle()[1]["body"]))


@pytest.mark.parametrize("name", BODY)
@pytest.mark.parametrize("place", [1, 3, 5])
def test_every_changed_field_is_reported(name: str, place: int) -> None:
    lines = bundle()
    body = json.loads(lines[place]["body"])
    body[name] = body[name] + 1 if isinstance(body[name], int) else f"{body[name] or ''}x"
    lines[place]["body"] = verify.canonical(body)
    found = wrong(lines)
    assert found, name
    assert any("signature" in one or "not a receipt" in one for one in found), found


@pytest.mark.parametrize("name", BODY)
def test_every_removed_or_added_field_is_reported(name: str) -> None:
    for change in ("remove", "add"):
        lines = bundle()
        body = json.loads(lines[2]["body"])
        body.pop(name) if change == "remove" else body.update({f"{name}_": 1})
        lines[2]["body"] = verify.canonical(body)
        assert any("missing or unknown" in one for one in wrong(lines))


@pytest.mark.parametrize(
    ("name", "value"), [("v", 2), ("counter", True), ("counter", -1), ("epoch", 1.5), ("tool", 7)]
)
def test_a_field_of_the_wrong_type_is_reported_even_if_signed(name: str, value: Any) -> None:
    lines = bundle()
    body = json.loads(lines[2]["body"])
    body[name] = value
    lines[2]["body"] = verify.canonical(body)
    assert any("not a receipt" in one for one in wrong(lines))


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_a_removed_receipt_is_reported(place: int) -> None:
    lines = bundle()
    del lines[place]
    assert any(f"receipts {place} to {place} are missing" in one for one in wrong(lines))


@pytest.mark.process
def test_a_truncated_chain_is_reported_when_the_head_is_given(tmp_path: Path) -> None:
    lines = bundle()
    last = verify.read_bundle(json.dumps(lines).encode()).receipts[4].hash
    cut = lines[:4] + lines[6:]
    assert not wrong(cut), "nobody can know without the head, and nobody says so"
    assert any(
        "the last receipt is 3, not 5: receipts are missing at the end" in one
        for one in wrong(cut, {"pi": "5"})
    )
    assert any("missing at the end" in one for one in wrong(cut, {"pi": last}))
    assert any("missing at the end" in one for one in wrong([lines[0]], {"pi": "5"}))
    assert not wrong(lines, {"pi": last, "hub": "3"})
    code, said = checked(cut, "--head", f"pi={last}", tmp=tmp_path)
    assert code == 1
    assert "WRONG: pi: the last receipt is not" in said


@pytest.mark.parametrize(("one", "other"), [(1, 2), (2, 4), (4, 5)])
def test_receipts_out_of_order_are_reported(one: int, other: int) -> None:
    lines = bundle()
    lines[one], lines[other] = lines[other], lines[one]
    assert any("out of order" in found or "missing" in found for found in wrong(lines))


def test_a_swapped_signature_is_reported() -> None:
    lines = bundle()
    pairs = lines[1], lines[2]
    pairs[0]["signature"], pairs[1]["signature"] = pairs[1]["signature"], pairs[0]["signature"]
    assert sum("signature is wrong" in one for one in wrong(lines)) == 2


def other_texts(text: str) -> list[str]:
    """Texts that lax base64 decodes to the same bytes: unused bits, padding, skipped signs."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    next_letter = letters[letters.index(text[-1]) + 1]
    return [text[:-1] + next_letter, f"{text}==", f"{text}\n", f"!{text}"]


@pytest.mark.parametrize("number", range(4))
def test_another_text_of_the_same_signature_is_reported(number: int) -> None:
    lines = bundle()
    lines[1]["signature"] = other_texts(lines[1]["signature"])[number]
    assert sum("signature is wrong" in one for one in wrong(lines)) == 1


@pytest.mark.parametrize("number", range(4))
def test_another_text_of_the_lineages_own_key_approves_nothing(number: int) -> None:
    body: dict[str, Any] = {
        "v": 1, "agent": "helper", "number": 1, "prev": "", "at": 1.0, "key": HUB.public_key,
        "kind": "proposal", "digest": "", "by": "search", "parent": "",
    }  # fmt: skip

    def line(**other: Any) -> dict[str, Any]:
        text = verify.canonical(body | other)
        return {"type": "genome", "body": text, "signature": HUB.sign_genome(text.encode())}

    proposal = line()
    hash_ = verify.digest(body)
    proof = {
        "approval": "key", "key": other_texts(HUB.public_key)[number],
        "signature": HUB.sign_approval(hash_),
    }  # fmt: skip
    verdict = {"kind": "verdict", "candidate": 1, "stage": "approval", "passed": True}
    approval = line(number=2, prev=hash_, scores=proof, **verdict)
    assert any("signature of the approval is wrong" in one for one in wrong([proposal, approval]))


def test_a_replayed_receipt_and_one_of_another_device_are_reported() -> None:
    lines = bundle()
    assert any("twice (a replay)" in one for one in wrong([*lines[:3], lines[2], *lines[3:]]))
    foreign = deepcopy(lines)
    foreign[2] = {**foreign[2], "body": lines[8]["body"], "signature": lines[8]["signature"]}
    found = wrong(foreign)
    assert any("pi: receipts 2 to 2 are missing" in one for one in found), found
    assert any("hub: " in one for one in found), "and there it is out of its place"


def test_a_forked_chain_is_reported() -> None:
    lines = bundle()
    _, other = made(PI, "pi", 3, json.loads(lines[3]["body"])["prev"], "c1")
    changed = replace(
        made(PI, "pi", 3, json.loads(lines[3]["body"])["prev"], "c1")[0], tool="another"
    )
    other = PI.sign(changed)
    extra = {"type": "receipt", "body": other.body, "signature": other.signature}
    found = wrong([*lines[:4], extra, *lines[4:]])
    assert any("differs (a fork)" in one for one in found)
    assert any(
        "does not refer to the hash" in one for one in wrong([*lines[:3], extra, *lines[4:]])
    )


def test_changed_arguments_and_results_are_reported() -> None:
    lines = bundle()
    lines[1]["arguments"] = {"command": "rm"}
    lines[2]["result"]["result"] = "something else"
    lines[3]["result"] = None
    found = wrong(lines)
    assert any("receipt 1" in one and "arguments" in one for one in found)
    assert any("receipt 2" in one and "result" in one for one in found)
    assert any("receipt 3" in one and "result" in one for one in found)


@pytest.mark.process
def test_a_key_given_by_the_user_overrides_the_key_in_the_file(tmp_path: Path) -> None:
    code, said = checked(bundle(), "--key", f"pi={HUB.public_key}", tmp=tmp_path)
    assert code == 1
    assert "signed with a key that is not the device's" in said
    code, said = checked(bundle(), "--key", f"pi={PI.public_key}", tmp=tmp_path)
    assert code == 0
    assert "given with --key" in said


def test_a_missing_key_and_a_second_key_are_reported() -> None:
    lines = bundle()
    assert any("no key for 'pi'" in one for one in wrong(lines[1:]))
    twice = [*lines, {"type": "key", "agent_id": "pi", "key": HUB.public_key}]
    assert any("a second key for 'pi'" in one for one in wrong(twice))


def test_a_partial_chain_is_verified_with_the_partial_option() -> None:
    lines = bundle()
    part = [lines[0], lines[2], lines[3], lines[5]]
    assert any("missing" in one for one in wrong(part))
    assert not wrong(part, partial=True)
    body = json.loads(part[2]["body"])
    forged = PI.sign(replace(made(PI, "pi", 3, "0" * 64, "c1")[0], tool="x"))
    assert body["prev"] != "0" * 64
    part[2] = {"type": "receipt", "body": forged.body, "signature": forged.signature}
    assert any("does not refer to the hash" in one for one in wrong(part, partial=True))


def test_a_refusal_outside_the_chain_is_verified_by_its_signature() -> None:
    found, signed = made(PI, "pi", 0, "", "")
    line = {"type": "receipt", "body": signed.body, "signature": signed.signature}
    assert not wrong([*bundle(), line])
    forged = PI.sign(replace(found, prev="0" * 64))
    bad = {"type": "receipt", "body": forged.body, "signature": forged.signature}
    assert any("counter 0 is outside any chain" in one for one in wrong([*bundle(), bad]))


def record(seq: int, event: dict[str, Any]) -> dict[str, Any]:
    return {"run_id": "run", "seq": seq, "at": 0.0, "event": event}


def records(lines: Lines, **other: Any) -> Lines:
    hash_ = verify.read_bundle(json.dumps(lines).encode()).receipts[0].hash
    started = {"call_id": "c1", "name": "bash", "arguments": ARGUMENTS, "request_id": "run.1.0.1"}
    details = {"receipt": {"state": "valid", "id": f"r1-{hash_[:8]}", "hash": hash_}}
    finished = {"call_id": "c1", "name": "bash", "details": details}
    return [
        record(1, {"type": "call_started", **started, **other}),
        record(2, {"type": "call_finished", "result": {**finished, **other}}),
    ]


def test_run_records_are_compared_with_the_receipts() -> None:
    lines = bundle()
    assert not wrong([*lines, *records(lines)])
    changed = [*lines, *records(lines, arguments={"command": "rm"})]
    assert any("other arguments" in one for one in wrong(changed))
    failed = [*lines, *records(lines, error="timeout")]
    assert any("whether it succeeded" in one for one in wrong(failed))
    gone = [line for line in lines if line is not lines[1]]
    assert any("is not in the file" in one for one in wrong([*gone, *records(lines)]))


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"{", b'{"a": 1, "a": 2}\n', b"[" * 100_000],
)
def test_a_file_that_is_not_a_bundle_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    assert verify.main([str(path)]) == 2
    assert verify.main([str(tmp_path / "nowhere")]) == 2


def test_a_file_without_receipts_proves_nothing() -> None:
    assert wrong([]) == ["the file: it contains neither a receipt nor a lineage"]
    assert any("neither a key" in one for one in wrong([{"type": "poem"}]))


@pytest.mark.process
def test_control_characters_in_a_file_are_not_printed(tmp_path: Path) -> None:
    lines = bundle()
    lines.append({"type": "key", "agent_id": "\x1b[2J", "key": 1})
    lines.append({"type": "key", "agent_id": "pi", "key": "\x1b]0;x\x07"})
    _, said = checked(lines, tmp=tmp_path)
    assert "\x1b" not in said
    assert "\x07" not in said
