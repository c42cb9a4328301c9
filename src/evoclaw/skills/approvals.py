"""Skill approvals: the digests of the skills that the user approved."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError

MAX_APPROVAL_FILE_BYTES = 1 << 20
MAX_DIGESTS_PER_SKILL = 20
"""Several versions of one skill may be installed side by side."""


class _ApprovalRecord(Struct, forbid_unknown_fields=True):
    skills: dict[str, list[str]] = {}


class SkillApprovalFile:
    """Skill approvals in a JSON file that only its owner may change."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def digests(self, name: str) -> tuple[str, ...]:
        """The approved digests of a skill."""
        return tuple(self._read().skills.get(name, ()))

    def pin(self, name: str, digest: str) -> None:
        """Approve a digest of a skill; earlier digests of the same name stay approved."""
        file = self._read()
        earlier = [other for other in file.skills.get(name, []) if other != digest]
        file.skills[name] = [digest, *earlier][:MAX_DIGESTS_PER_SKILL]
        self._write(file)

    def unpin(self, name: str) -> None:
        """Revoke every approval of a skill."""
        file = self._read()
        file.skills.pop(name, None)
        self._write(file)

    def _read(self) -> _ApprovalRecord:
        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_APPROVAL_FILE_BYTES + 1)
        except FileNotFoundError:
            return _ApprovalRecord()
        except OSError as problem:
            raise ConfigError(
                f"cannot read the skill approvals {self.path}: {problem.strerror}"
            ) from None
        try:
            if len(data) > MAX_APPROVAL_FILE_BYTES:
                raise ValueError(f"the file has more than {MAX_APPROVAL_FILE_BYTES:,} bytes")
            return msgspec.json.decode(data, type=_ApprovalRecord)
        except ValueError as problem:
            # An empty list would accept every changed skill.
            raise ConfigError(
                f"the skill approvals {self.path} are damaged ({problem}); "
                "delete the file and approve the skills again with `evoclaw skills add`"
            ) from None

    def _write(self, file: _ApprovalRecord) -> None:
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        data = msgspec.json.format(msgspec.json.encode(file, order="sorted"))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as open_file:
                open_file.write(data + b"\n")
                open_file.flush()
                os.fsync(descriptor)
            temporary.replace(self.path)
        except OSError as problem:
            temporary.unlink(missing_ok=True)
            raise ConfigError(
                f"cannot write the skill approvals {self.path}: {problem.strerror}"
            ) from None
