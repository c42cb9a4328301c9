"""Several processes write one chain, and whatever ends one of them is seen and survived."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.observe.audit.records import canonical
from evoclaw.observe.audit.settings import AuditError, AuditSettings
from evoclaw.observe.audit.warm import (
    CHECKPOINTS_FILE,
    HEAD_FILE,
    day_files,
    lines_backwards,
    read_head,
    read_lines,
    spool_size,
)
from tests.support.audit import (
    DAY,
    NOON,
    Clock,
    audit_in,
    check,
    draft,
    fields,
    lines_in,
    warm_in,
)

ROOT = Path(__file__).parents[2]
WRITER = """
import sys
from pathlib import Path
from tests.support.audit import fields, warm_in
warm = warm_in(Path(sys.argv[1]), 10)
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    warm.append([fields(number), fields(number)], 1_793_016_000.0 + number)
"""


def writer(data: Path, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(data), str(count)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def start(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdin.write(b"\n")
    process.stdin.flush()


def end(process: subprocess.Popen[bytes], seconds: float = 60) -> int:
    with process:
        return process.wait(seconds)


@pytest.mark.process
def test_concurrent_processes_write_one_chain(tmp_path: Path) -> None:
    writers = [writer(tmp_path, 50) for _ in range(3)]
    for one in writers:
        start(one)
    assert [end(one) for one in writers] == [0, 0, 0]

    report = check(tmp_path)
    assert report.findings == ()
    assert report.records == 300


@pytest.mark.process
def test_the_chain_continues_after_a_killed_writer(tmp_path: Path) -> None:
    for _ in range(4):
        one = writer(tmp_path, 100_000)
        start(one)
        before = size_of(tmp_path)
        while size_of(tmp_path) < before + 20_000 and one.poll() is None:
            os.sched_yield()
        one.send_signal(signal.SIGKILL)
        end(one)
    warm_in(tmp_path).append([fields(1)], NOON)
    warm_in(tmp_path).checkpoint(NOON)

    assert check(tmp_path).findings == ()


def size_of(data: Path) -> int:
    return sum(file.path.stat().st_size for file in day_files(data / "audit"))


def test_records_after_a_stale_head_are_recovered(tmp_path: Path) -> None:
    warm = warm_in(tmp_path, 2)
    warm.append([fields(1)], NOON)
    head = (tmp_path / "audit" / HEAD_FILE).read_bytes()
    warm.append([fields(2), fields(3)], NOON)
    (tmp_path / "audit" / HEAD_FILE).write_bytes(head)
    with day_files(tmp_path / "audit")[0].path.open("ab") as file:
        file.write(b'{"torn":')

    warm.append([fields(4)], NOON)

    assert check(tmp_path).findings == ()
    kinds = [json.loads(line)["kind"] for line in lines_in(tmp_path)]
    assert kinds == ["call", "call", "call", "recovered", "call"]
    assert json.loads(lines_in(tmp_path)[3])["reason"] == "8 bytes of a torn line"


def test_a_new_day_file_after_a_stale_head_is_recovered(tmp_path: Path) -> None:
    warm = warm_in(tmp_path)
    warm.append([fields(1)], NOON)
    head = (tmp_path / "audit" / HEAD_FILE).read_bytes()
    warm.append([fields(2)], NOON + DAY)
    (tmp_path / "audit" / HEAD_FILE).write_bytes(head)

    warm.append([fields(3)], NOON + DAY)
    warm.checkpoint(NOON + DAY)

    assert check(tmp_path).findings == ()
    assert len(lines_in(tmp_path)) == 3


def test_a_torn_checkpoint_is_truncated(tmp_path: Path) -> None:
    warm = warm_in(tmp_path, 1)
    warm.append([fields(1)], NOON)
    with (tmp_path / "audit" / CHECKPOINTS_FILE).open("ab") as file:
        file.write(b'{"chain":')

    warm.append([fields(2)], NOON)

    assert check(tmp_path).findings == ()
    assert check(tmp_path).checkpoints == 2


def test_the_chain_continues_after_a_truncation_and_verify_reports_the_gap(tmp_path: Path) -> None:
    warm = warm_in(tmp_path)
    warm.append([fields(number) for number in range(5)], NOON)
    path = day_files(tmp_path / "audit")[0].path
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[:3]) + b"\n")

    warm.append([fields(6)], NOON)

    kinds = [json.loads(line)["kind"] for line in lines_in(tmp_path)]
    assert kinds == ["call", "call", "call", "recovered", "call"]
    found = check(tmp_path).findings[0]
    assert (found.kind, found.text) == ("gap", "missing before this line: 4 to 5")


def test_a_lost_head_is_recovered_and_recorded(tmp_path: Path) -> None:
    warm = warm_in(tmp_path, 2)
    warm.append([fields(number) for number in range(5)], NOON)
    (tmp_path / "audit" / HEAD_FILE).unlink()

    warm.append([fields(6)], NOON)

    assert check(tmp_path).findings == ()
    assert json.loads(lines_in(tmp_path)[5])["reason"] == "the head was missing"


def test_new_days_and_clocks_set_back_keep_the_record_order(tmp_path: Path) -> None:
    warm = warm_in(tmp_path)
    for now in (NOON, NOON + DAY, NOON - 2 * DAY, NOON - 2 * DAY + 60, NOON + 400 * DAY, NOON):
        warm.append([fields(1, now)], now)

    assert check(tmp_path).findings == ()
    names = [file.path.name for file in day_files(tmp_path / "audit")]
    assert [name[:10] for name in names] == [
        "2026-10-26", "2026-10-27", "2026-10-24", "2027-11-30", "2026-10-26",
    ]  # fmt: skip
    assert check(tmp_path).checkpoints == 4, "each day is signed when the next begins"


LIMITED = """
import resource, signal, sys
from pathlib import Path
from tests.support.audit import fields, warm_in
data = Path(sys.argv[1])
warm = warm_in(data, 4)
warm.append([fields(1), fields(2)], 1_793_016_000.0)
size = sum(p.stat().st_size for p in (data / "audit").glob("2*"))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300, hard))
failed = 0
for _ in range(3):
    try:
        warm.append([fields(3), fields(4), fields(5)], 1_793_016_000.0)
    except OSError:
        failed += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
warm.append([fields(3), fields(4), fields(5)], 1_793_016_000.0)
warm.checkpoint(1_793_016_000.0)
print(failed)
"""


@pytest.mark.process
def test_fault_26_a_full_disk_leaves_no_partial_or_duplicate_record(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert done.stdout.strip() == "3"
    commands = [json.loads(line)["parameters"]["command"] for line in lines_in(tmp_path)]
    assert commands == [f"echo {number}" for number in range(1, 6)]
    assert check(tmp_path).findings == ()


def test_a_full_spool_refuses_records_until_space_is_free(tmp_path: Path) -> None:
    clock = Clock()
    audit = audit_in(tmp_path, clock, AuditSettings(spool_bytes=65_536, parameter_chars=5000))
    for number in range(20):
        audit.note(draft(clock, number, text="word " * 900))
    audit.flush()
    assert spool_size(tmp_path / "audit") > 65_536
    clock.advance(2)
    audit.flush()
    with pytest.raises(AuditError, match="wait for the cold tier"):
        audit.note(draft(clock))

    for file in day_files(tmp_path / "audit"):
        file.path.unlink()  # as if it were shipped and retired
    clock.advance(2)
    audit.flush()
    audit.note(draft(clock))
    audit.close()
    assert len(lines_in(tmp_path)) == 2


def test_the_head_always_names_the_last_record(tmp_path: Path) -> None:
    warm = warm_in(tmp_path, 3)
    for number in range(8):
        sealed = warm.append([fields(number)], NOON)
        head = read_head(tmp_path / "audit")
        assert head is not None
        assert (head.seq, head.hash) == (sealed[-1].seq, sealed[-1].hash)


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\n\n", b"long line"])), st.integers(1, 20))
def test_lines_read_backwards_equal_the_lines_of_the_file(some: list[bytes], block: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "lines"
        assert list(lines_backwards(path, block)) == []
        path.write_bytes(b"".join(some))
        assert list(lines_backwards(path, block)) == read_lines(path)[::-1]


def test_a_checkpoint_unknown_to_the_head_is_adopted_and_a_torn_one_removed(
    tmp_path: Path,
) -> None:
    warm = warm_in(tmp_path, 2)
    for number in range(4):
        warm.append([fields(number)], NOON)
    head = (tmp_path / "audit" / HEAD_FILE).read_bytes()
    warm.append([fields(4)], NOON)
    warm.append([fields(5)], NOON)
    with (tmp_path / "audit" / CHECKPOINTS_FILE).open("ab") as file:
        file.write(b'{"torn')
    (tmp_path / "audit" / HEAD_FILE).write_bytes(head)  # as if the writer was killed before it

    warm = warm_in(tmp_path, 2)
    warm.append([fields(6), fields(7)], NOON)

    numbers = [json.loads(line)["n"] for line in read_lines(tmp_path / "audit" / CHECKPOINTS_FILE)]
    assert numbers == [1, 2, 3, 4]
    assert check(tmp_path).ok


def test_fault_52_invisible_characters_are_escaped_in_a_record() -> None:
    hidden = "a\u2028b\u202ec\u200bd\U000e0041e\u0085f\ufeff"
    line = canonical({"error": hidden, "tool": "日本 é 👩"})
    assert not {chr(n) for n in range(0x2028, 0x202F)} & set(line.decode())
    assert "\U000e0041" not in line.decode() and "\u0085" not in line.decode()
    assert "日本 é 👩" in line.decode()
    assert msgspec.json.decode(line)["error"] == hidden
    assert canonical(msgspec.json.decode(line)) == line
