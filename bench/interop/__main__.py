"""`make interop`: foreign software judges our standards; writes docs/standards.md.

Ends with one JSON object: `{"rows": [{"standard", "revision", "software", "version", "passed",
"total"}]}`. It fails if a check fails or software is missing. `--only TEXT` runs the rows whose
software contains it, and then leaves the page as it is.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from bench.interop.judges import JUDGES, Judge, NotInstalled

PAGE = Path(__file__).parents[2] / "docs" / "standards.md"
HEAD = """\
# Standards

Which standards EvoClaw speaks, and which software of others judged it, unchanged, in these
versions. `make interop` installs the software, runs every check and writes this page; nothing on it
is written by hand.

| standard | revision | judged by | version | passed |
| --- | --- | --- | --- | --- |
"""
NOT_IMPLEMENTED = "not implemented"
"""How the problem of a check starts that is listed in the docs with its reason."""
TAIL = """
A check that is not passed is one of what is not implemented: the
[MCP guide](guides/mcp.md#the-conformance-suite) names the four, with the reasons.

The programs that run the foreign software are in `bench/interop/`; to add a row, add a `Judge` to
`bench/interop/judges.py`.
"""


def rendered(rows: list[dict[str, Any]]) -> str:
    """The page with the table."""
    lines = [
        f"| {row['standard']} | {row['revision']} | {row['software']} | {row['version']} | "
        f"{row['passed']} of {row['total']} |"
        for row in rows
    ]
    return HEAD + "\n".join(lines) + "\n" + TAIL


async def judged(judge: Judge) -> tuple[dict[str, Any] | None, bool]:
    """One row, and whether all that is implemented passed; what failed is printed.

    There is no row if the software cannot be installed here.
    """
    print(f"{judge.software} {judge.version}", file=sys.stderr, flush=True)
    try:
        problems = await judge.run(True)
    except NotInstalled as missing:
        print(f"  NOT JUDGED: {missing}", file=sys.stderr, flush=True)
        return None, False
    failed = {name: problem for name, problem in problems.items() if problem}
    for name, problem in failed.items():
        print(f"  FAILED {name}: {problem}", file=sys.stderr, flush=True)
    is_good = all(problem.startswith(NOT_IMPLEMENTED) for problem in failed.values())
    row = {
        "standard": judge.standard,
        "revision": judge.revision,
        "software": judge.software,
        "version": judge.version,
        "passed": sum(not problem for problem in problems.values()),
        "total": len(problems),
    }
    return row, is_good and bool(problems)


async def main(only: str) -> int:
    """Run the rows one after the other."""
    chosen = [judge for judge in JUDGES if only.lower() in judge.software.lower()]
    found = [await judged(judge) for judge in chosen]
    rows = [row for row, _ in found if row is not None]
    if not only:
        PAGE.write_text(rendered(rows))
    print(json.dumps({"rows": rows}))
    return 0 if all(is_good for _, is_good in found) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[2] if sys.argv[1:2] == ["--only"] else "")))
