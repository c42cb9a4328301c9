"""A run as a file: what a crash tears is left out, other damage is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError, RecordingError
from evoclaw.core.events import Record, TextDelta
from evoclaw.store.sessions.recordings import Recording, read_recording, reopen_recording


def written(path: Path, count: int = 3) -> list[Record]:
    recording = Recording(path)
    records = [Record("run", seq, 0.5, TextDelta(f"piece {seq}\n")) for seq in range(1, count + 1)]
    for record in records:
        recording.receive(record)
    recording.close()
    return records


def test_a_recording_round_trips_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.jsonl"
    assert written(path) == read_recording(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_torn_last_line_is_ignored_and_truncated_before_appending(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    records = written(path)
    whole = path.read_bytes()
    for cut in range(1, 20):
        path.write_bytes(whole[:-cut])
        assert read_recording(path) == records[:-1]
    found, recording = reopen_recording(path)
    recording.receive(records[2])
    recording.close()
    assert (found, recording.seq) == (records[:-1], 2)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("damage", ["bit", "line out", "lines swapped", "empty", "only a piece"])
def test_fault_27_a_damaged_recording_is_refused_with_the_line_number(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "run.jsonl"
    written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        {
            "bit": b"".join(lines).replace(b'"seq":2', b'"seq":"', 1),
            "line out": lines[0] + lines[2],
            "lines swapped": lines[1] + lines[0] + lines[2],
            "empty": b"",
            "only a piece": lines[0][:10],
        }[damage]
    )
    with pytest.raises(RecordingError, match=r"line \d|no records"):
        read_recording(path)


def test_an_unwritable_path_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot record to"):
        Recording(tmp_path / "file" / "run.jsonl")
