"""Whoever touches the audit is found out, and the place is named."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.observe.audit.checkpoints import (
    AuditKey,
    Checkpoint,
    check_key,
    decode,
    encode,
    is_signed,
)
from evoclaw.observe.audit.reader import exported_files
from evoclaw.observe.audit.records import canonical, genesis, seal, unseal
from evoclaw.observe.audit.verify import verify
from evoclaw.observe.audit.warm import CHECKPOINTS_FILE, HEAD_FILE, day_files, read_head
from tests.support.audit import DAY, NOON, check, fields, public_key_of, warm_in

COUNT, EVERY = 30, 5


@pytest.fixture(name="data", scope="module")
def _data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days, written ten at a time."""
    data = tmp_path_factory.mktemp("audit")
    warm = warm_in(data, EVERY)
    for day in range(3):
        now = NOON + day * DAY
        for start in range(0, 10, 5):
            numbers = range(day * 10 + start, day * 10 + start + 5)
            warm.append([fields(number, now) for number in numbers], now)
    warm.checkpoint(NOON + 2 * DAY)
    return data


@pytest.fixture(name="copy")
def _copy(data: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    return copy


def files_of(data: Path) -> list[Path]:
    return [file.path for file in day_files(data / "audit")]


def test_an_unmodified_audit_has_no_findings(data: Path) -> None:
    report = check(data)

    assert report.findings == ()
    assert (report.first, report.last, report.records) == (1, COUNT, COUNT)
    assert (report.checkpoints, report.signed) == (6, COUNT)
    assert len(files_of(data)) == 3


def rewritten(data: Path, where: tuple[int, int], change: Callable[[dict[str, Any]], None]) -> int:
    """Change one record's content without a thought for its hash; its number."""
    path = files_of(data)[where[0]]
    lines = path.read_bytes().split(b"\n")
    record = json.loads(lines[where[1]])
    seq = record["seq"]
    change(record)
    lines[where[1]] = canonical(record)
    path.write_bytes(b"\n".join(lines))
    return seq


NAMES = ("seq", "prev", "hash", "at", "timestamp", "kind", "tool", "result", "parameters", "user",
         "tenant", "agent_id", "run_id", "verdict")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", [(0, 0), (0, 9), (1, 4), (2, 9)])
def test_fault_67_an_edit_of_any_field_is_reported_with_its_line(
    copy: Path, name: str, where: tuple[int, int]
) -> None:
    def change(record: dict[str, Any]) -> None:
        was = record[name]
        record[name] = was + 1 if isinstance(was, int | float) else f"{was}x"

    rewritten(copy, where, change)

    first = check(copy).findings[0]
    assert first.kind == "edited"
    assert (first.place, first.line) == (files_of(copy)[where[0]].name, where[1] + 1)


@pytest.mark.parametrize("where", [(0, 0), (1, 4), (2, 9)])
@pytest.mark.parametrize("how", ["added", "taken", "inside", "spaces", "twice"])
def test_fault_67_added_removed_and_reformatted_fields_are_reported(
    copy: Path, where: tuple[int, int], how: str
) -> None:
    path = files_of(copy)[where[0]]
    lines = path.read_bytes().split(b"\n")
    record, line = json.loads(lines[where[1]]), lines[where[1]]
    match how:
        case "added":
            line = canonical({**record, "extra": 1})
        case "taken":
            line = canonical({name: value for name, value in record.items() if name != "user"})
        case "inside":
            line = canonical({**record, "parameters": {"command": "rm -rf /"}})
        case "spaces":
            line = json.dumps(record).encode()
        case _:
            line = line.replace(b'"tool":"bash"', b'"tool":"other","tool":"bash"')
    lines[where[1]] = line
    path.write_bytes(b"\n".join(lines))

    first = check(copy).findings[0]
    assert (first.kind, first.place, first.line) == ("edited", path.name, where[1] + 1)


def places() -> Iterator[tuple[int, int]]:
    return ((file, line) for file in range(3) for line in range(10))


def all_lines(data: Path) -> list[list[bytes]]:
    return [path.read_bytes().split(b"\n")[:-1] for path in files_of(data)]


def put(data: Path, lines: list[list[bytes]]) -> None:
    for path, some in zip(files_of(data), lines, strict=True):
        path.write_bytes(b"".join(line + b"\n" for line in some))


def test_fault_67_every_deleted_record_is_reported(copy: Path) -> None:
    whole = all_lines(copy)
    names = [path.name for path in files_of(copy)]
    for file, line in places():
        lines = [list(some) for some in whole]
        del lines[file][line]
        put(copy, lines)
        found = check(copy).findings
        if (file, line) == (2, 9):
            assert (found[0].kind, found[0].line) == ("cut", 9)
        elif (file, line) == (0, 0):
            assert (found[0].kind, found[0].line) == ("cut", 1)
        else:
            place = (names[file], line + 1) if line < 9 else (names[file + 1], 1)
            assert (found[0].kind, found[0].place, found[0].line) == ("gap", *place)
            assert str(file * 10 + line + 1) in found[0].text


def test_fault_67_every_swap_of_two_records_is_reported(copy: Path) -> None:
    whole = all_lines(copy)
    chance = random.Random(67)
    pairs = [(a, b) for a in range(COUNT) for b in range(a + 1, COUNT)]
    for a, b in [*((n, n + 1) for n in range(COUNT - 1)), *chance.sample(pairs, 60)]:
        lines = [list(some) for some in whole]
        one, two = divmod(a, 10), divmod(b, 10)
        lines[one[0]][one[1]], lines[two[0]][two[1]] = whole[two[0]][two[1]], whole[one[0]][one[1]]
        put(copy, lines)
        first = check(copy).findings[0]
        if a == 0:
            assert first.line == 1, first
        else:
            assert (first.kind, first.line) == ("reordered", one[1] + 1), first


def test_fault_67_every_duplicated_record_is_reported(copy: Path) -> None:
    whole = all_lines(copy)
    for file, line in places():
        lines = [list(some) for some in whole]
        lines[file].insert(line + 1, whole[file][line])
        put(copy, lines)
        first = check(copy).findings[0]
        assert (first.kind, first.line) == ("duplicate", line + 2), first
    lines = [list(some) for some in whole]
    lines[2].append(whole[0][0])
    put(copy, lines)
    assert (check(copy).findings[0].kind, check(copy).findings[0].line) == ("duplicate", 11)


def test_fault_67_truncation_at_any_byte_is_reported(copy: Path) -> None:
    path = files_of(copy)[2]
    whole = path.read_bytes()
    ends = [0, *(at + 1 for at, byte in enumerate(whole) if byte == 10)]
    for at in sorted({*ends[:-1], *(end + 40 for end in ends[:-1]), len(whole) - 1, 1}):
        path.write_bytes(whole[:at])
        found = check(copy).findings
        at_boundary = at in ends
        assert found[0].kind == ("cut" if at_boundary else "torn"), (at, found[0])
        assert {"cut", "torn"} & {one.kind for one in found}
    middle = files_of(copy)[1]
    path.write_bytes(whole)
    middle.write_bytes(middle.read_bytes()[:-1])
    assert check(copy).findings[0].kind == "torn"


@pytest.mark.parametrize("number", range(3))
def test_fault_67_a_missing_file_is_reported(copy: Path, number: int) -> None:
    files_of(copy)[number].unlink()
    first = check(copy).findings[0]
    assert first.kind == ("gap" if number == 1 else "cut")
    assert first.line in (1, 10)


def test_fault_67_a_restored_old_file_is_reported(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    now = NOON + 2 * DAY
    old = {path.name: path.read_bytes() for path in (copy / "audit").iterdir()}
    warm_in(copy, EVERY).append([fields(number, now) for number in range(40, 45)], now)
    warm_in(copy, EVERY).checkpoint(now)
    day = files_of(copy)[2].name
    new = {path.name: path.read_bytes() for path in (copy / "audit").iterdir()}
    for names in (
        [day],
        [HEAD_FILE],
        [CHECKPOINTS_FILE],
        [day, HEAD_FILE],
        [day, CHECKPOINTS_FILE],
        [HEAD_FILE, CHECKPOINTS_FILE],
    ):
        for name, content in new.items():
            (copy / "audit" / name).write_bytes(old[name] if name in names else content)
        report = check(copy)
        assert not report.ok, names
        if day in names:
            assert any(one.kind == "cut" and one.line == 10 for one in report.findings), names


def test_fault_67_a_full_rollback_is_found_by_a_pin_or_the_cold_tier(
    data: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    now = NOON + 2 * DAY
    sealed = warm_in(copy, EVERY).append([fields(99, now)], now)
    pin = warm_in(copy, EVERY).checkpoint(now)
    assert pin is not None and pin.seq == COUNT + 1
    assert check(copy, at_least=pin).ok

    assert check(data).ok, "alone it cannot be told"
    assert check(data, at_least=pin).findings[0].kind == "old"
    cold = [(one.seq, one.line) for one in sealed]
    assert check(data, cold=cold).findings[0].kind == "old"


def rechained(data: Path, at: int) -> None:
    """Change a record and give every later one a right hash, as one without the key could."""
    lines = [unseal(line).fields for some in all_lines(data) for line in some]
    head = read_head(data / "audit")
    assert head is not None
    prev, made = genesis(head.chain), list[bytes]()
    for number, record in enumerate(lines, 1):
        body = {n: v for n, v in record.items() if n not in ("seq", "prev", "hash")}
        if number == at:
            body["user"] = "mallory"
        sealed = seal(body, number, prev)
        prev = sealed.hash
        made.append(sealed.line)
    put(data, [made[:10], made[10:20], made[20:]])
    size = len(b"".join(line + b"\n" for line in made[20:]))
    forged = msgspec.structs.replace(head, hash=prev, size=size)
    (data / "audit" / HEAD_FILE).write_bytes(msgspec.json.encode(forged))


@pytest.mark.parametrize("at", [1, 5, 15, 30])
def test_fault_67_a_recomputed_chain_does_not_match_its_checkpoints(copy: Path, at: int) -> None:
    rechained(copy, at)

    found = check(copy).findings

    assert found[0].kind == "edited"
    assert "signs another record" in found[0].text
    assert found[0].line > 0


@pytest.mark.parametrize("number", range(6))
def test_fault_67_a_missing_checkpoint_is_reported(copy: Path, number: int) -> None:
    path = copy / "audit" / CHECKPOINTS_FILE
    lines = path.read_bytes().split(b"\n")[:-1]
    del lines[number]
    path.write_bytes(b"".join(line + b"\n" for line in lines))

    assert "checkpoint" in {one.kind for one in check(copy).findings}


@pytest.mark.parametrize("name", ["chain", "n", "seq", "head", "at", "prev", "key", "signature"])
@pytest.mark.parametrize("number", [0, 3, 5])
def test_fault_67_a_forged_checkpoint_is_reported(copy: Path, name: str, number: int) -> None:
    path = copy / "audit" / CHECKPOINTS_FILE
    lines = path.read_bytes().split(b"\n")[:-1]
    record = json.loads(lines[number])
    was = record[name]
    record[name] = was + 1 if isinstance(was, int | float) else "A" + was[1:] + "A"
    lines[number] = canonical(record)
    path.write_bytes(b"".join(line + b"\n" for line in lines))

    found = [one for one in check(copy).findings if one.kind == "checkpoint"]
    assert (found[0].place, found[0].line) == (CHECKPOINTS_FILE, number + 1)


def test_fault_67_checkpoints_signed_with_another_key_are_untrusted(copy: Path) -> None:
    path = copy / "audit" / CHECKPOINTS_FILE
    other = AuditKey(b"k" * 32)
    lines = path.read_bytes().split(b"\n")[:-1]
    signed = [other.sign(one) for line in lines if (one := decode(line)) is not None]
    path.write_bytes(b"".join(encode(one) + b"\n" for one in signed))

    found = check(copy).findings[0]
    assert (found.kind, found.line) == ("checkpoint", 1)
    assert "untrusted" in found.text


def test_fault_67_a_missing_checkpoints_file_or_head_file_is_reported(copy: Path) -> None:
    kept = (copy / "audit" / CHECKPOINTS_FILE).read_bytes()
    (copy / "audit" / CHECKPOINTS_FILE).unlink()
    assert "checkpoint" in {one.kind for one in check(copy).findings}
    (copy / "audit" / CHECKPOINTS_FILE).write_bytes(kept)
    (copy / "audit" / HEAD_FILE).unlink()
    assert [one.kind for one in check(copy).findings] == ["head"]


HEAD_FIELDS = ("chain", "seq", "hash", "file", "size", "checkpoints", "checkpoint", "signed")


@pytest.mark.parametrize("name", HEAD_FIELDS)
def test_fault_67_an_edited_head_is_reported(copy: Path, name: str) -> None:
    path = copy / "audit" / HEAD_FILE
    for step in (-1, 1):
        record = json.loads(path.read_bytes())
        was = record[name]
        record[name] = was + step if isinstance(was, int) else f"{was}x"
        path.write_bytes(json.dumps(record).encode())
        assert not check(copy).ok
        record[name] = was
        path.write_bytes(json.dumps(record).encode())
    assert check(copy).ok


def test_fault_67_inserted_lines_are_reported(copy: Path) -> None:
    whole = all_lines(copy)
    for content in (b"", b"{}", b"null", b"\xff\xfe", b'{"seq":3,"hash":"x"}', b"[" * 5000):
        lines = [list(some) for some in whole]
        lines[1].insert(3, content)
        put(copy, lines)
        first = check(copy).findings[0]
        assert (first.kind, first.line) == ("edited", 4)


def test_fault_67_records_appended_after_the_head_are_reported(copy: Path) -> None:
    last = unseal(all_lines(copy)[2][9])
    forged = seal(fields(31), 31, last.hash)
    with files_of(copy)[2].open("ab") as file:
        file.write(forged.line + b"\n")

    assert "head" in {one.kind for one in check(copy).findings}


def test_an_export_is_verified_elsewhere_and_every_missing_line_is_reported(
    data: Path, tmp_path: Path
) -> None:
    rows = [line for some in all_lines(data) for line in some]
    signed = (data / "audit" / CHECKPOINTS_FILE).read_bytes().split(b"\n")[:-1]
    path, key = tmp_path / "out.jsonl", public_key_of(data)

    def report(lines: list[bytes]) -> Any:
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return verify(exported_files([path]), [key])

    whole = [*signed, *rows]
    assert report(whole).ok
    for number in range(len(whole)):
        assert not report(whole[:number] + whole[number + 1 :]).ok, number
    middle = [line for line in signed if (one := decode(line)) and one.seq >= 10]
    assert report([*middle, *rows[10:]]).ok, "it may begin after a checkpoint"
    assert not report([*middle, *rows[11:]]).ok
    assert not verify(exported_files([path]), [AuditKey(b"x" * 32).public]).ok


def test_a_checkpoint_signature_does_not_verify_after_a_change() -> None:
    key = AuditKey(b"s" * 32)
    one = key.sign(Checkpoint("c", 1, 5, "h", 1.0, "", ""))
    assert is_signed(one)
    assert not is_signed(msgspec.structs.replace(one, seq=6))
    assert not is_signed(msgspec.structs.replace(one, key="rubbish"))
    assert sha256(encode(one)).hexdigest() == one.hash


def test_an_invalid_key_is_refused(tmp_path: Path) -> None:
    for text in ("", "abc", "é" * 43, "A" * 44):
        with pytest.raises(ConfigError, match="public key"):
            check_key(text)
    path = tmp_path / "audit.key"
    path.write_text("rubbish")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="key"):
        AuditKey.load_or_create(path)
    path.write_text("A" * 43)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        AuditKey.load_or_create(path)


def test_every_single_changed_byte_is_detected(copy: Path) -> None:
    chance = random.Random(7)
    for path in [*files_of(copy), copy / "audit" / CHECKPOINTS_FILE]:
        whole = path.read_bytes()
        for _ in range(60):
            at = chance.randrange(len(whole))
            byte = chance.choice([b for b in range(256) if b != whole[at]])
            path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
            assert not check(copy).ok, (path.name, at, byte)
        path.write_bytes(whole)
    assert check(copy).ok
