"""A verdict by 1 to 1,000 rules, and the audit with 1,000 to a million entries."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.growth.curves import FLAT, LINEAR, Curve
from bench.growth.measure import Op, Points, lowest_cpu_us

from evoclaw.core.messages import JSON
from evoclaw.core.tools import Call
from evoclaw.governance.rules.document import Rule, RuleAction, RuleDocument
from evoclaw.governance.rules.policy import RulePolicy
from evoclaw.observe.audit.checkpoints import AuditKey
from evoclaw.observe.audit.cold import AuditQuery
from evoclaw.observe.audit.reader import audit_files, search
from evoclaw.observe.audit.verify import verify
from evoclaw.observe.audit.warm import WarmTier
from evoclaw.shell.commands import clear_command_cache
from evoclaw.tools.catalogue import load

SIZES = {True: (10, 100, 1_000), False: (10, 100, 1_000)}
ENTRIES = {True: (1_000, 10_000, 50_000), False: (1_000, 10_000, 100_000, 1_000_000)}
WHOLE = 100_000
"""The largest number of entries that is verified: verification reads all of them."""
NOW = 1_700_000_000.0
TOOLS = {bound.name: bound.tool for bound in load(("read", "bash"))}
CALLS = {
    "a command": ("bash", {"command": "cd src && grep -rn 'def ' . | sort > ../out.txt"}),
    "a file": ("read", {"path": "src/evoclaw/core/loop.py"}),
}


async def curves(quick: bool) -> AsyncGenerator[Curve]:
    """The curves of rules and of the audit log."""
    points = Points()
    for size in SIZES[quick]:
        rules = RulePolicy(RuleDocument(rules=tuple(_rules(size))), workspace="/work", home="/root")
        for name, (tool, arguments) in CALLS.items():
            op = _judge(rules, tool, arguments)
            took = await lowest_cpu_us(op, times=20)
            points.add(f"judge {name} with many rules", "µs", LINEAR, size, took)
    with TemporaryDirectory(prefix="growth-") as folder:
        await _audit(points, Path(folder), ENTRIES[quick])
    for curve in points.curves():
        yield curve


def _rules(size: int) -> Sequence[Rule]:
    """Rules about programs, paths and arguments in turn; none of them matches."""
    kinds = (
        lambda n: Rule(f"p{n}", RuleAction.DENY, programs=(f"tool{n}",)),
        lambda n: Rule(f"f{n}", RuleAction.DENY, paths=(f"/srv/data{n}",)),
        lambda n: Rule(f"a{n}", RuleAction.DENY, programs=("grep",), arguments=(f"--never{n}",)),
    )
    return [kinds[number % len(kinds)](number) for number in range(size)]


def _judge(rules: RulePolicy, tool: str, arguments: dict[str, JSON]) -> Op:
    numbers = count()

    async def op() -> None:
        clear_command_cache()
        id = f"bench.{next(numbers)}.1.1"
        await rules.judge(Call(id, TOOLS[tool], dict(arguments), id, 10.0))

    return op


async def _audit(points: Points, folder: Path, sizes: tuple[int, ...]) -> None:
    key = AuditKey.load_or_create(folder / "audit.key")
    warm, numbers = WarmTier(folder / "audit", key), count()

    def some(many: int) -> list[dict[str, JSON]]:
        return [
            {"kind": "tool", "at": NOW, "tool": "bash", "tenant": "local", "run_id": f"r{number}",
             "arguments": {"command": "ls -l"}, "result": "ok", "verdict": "allow"}
            for number in (next(numbers) for _ in range(many))
        ]  # fmt: skip

    async def append() -> None:
        warm.append(some(100), NOW)

    async def newest() -> None:
        assert len(await search(warm.folder, AuditQuery(limit=100))) == 100

    async def whole() -> None:
        assert verify(audit_files(warm.folder), [key.public]).ok

    filled = 0
    for size in sizes:
        while filled < size:
            warm.append(some(1_000), NOW)
            filled += 1_000
        # Enough appends that some of them sign a checkpoint.
        points.add(
            "audit: append 100", "µs", FLAT, size, await lowest_cpu_us(append, times=40, rounds=3)
        )
        filled += 121 * 100
        points.add(
            "audit: read the newest 100", "µs", FLAT, size, await lowest_cpu_us(newest, times=1)
        )
        if size <= WHOLE:
            took = await lowest_cpu_us(whole, times=1, rounds=2)
            points.add("audit: verify all", "µs", LINEAR, filled, took)
