"""What a verdict costs: each policy, for calls of `read` and `bash`; ends with one JSON object."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from statistics import median

from evoclaw.core.ports import Policy
from evoclaw.core.tools import Call
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.governance.chain import Chain
from evoclaw.governance.permissions import Permissions
from evoclaw.governance.rules.disk import ThisDisk
from evoclaw.governance.rules.document import CallExample
from evoclaw.governance.rules.examples import example_call, load_rules
from evoclaw.governance.rules.policy import ToolStatus

ROUNDS = 3_000
CALLS = {
    "read": CallExample("read", {"path": "src/evoclaw/core/loop.py"}),
    "bash": "git status --short",
    "bash_pipe": "cat README.md | head -50",
    "bash_long": "cd src && grep -rn 'def ' evoclaw/core | sort > ../out.txt 2>&1 || echo none",
}


async def measure(policy: Policy, call: Call) -> float:
    for _ in range(ROUNDS // 10):
        await policy.judge(call)
    took: list[int] = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        await policy.judge(call)
        took.append(time.perf_counter_ns() - began)
    return round(median(took) / 1000, 1)


async def main() -> None:
    here = str(Path.cwd())
    home = str(Path.home())
    policies: dict[str, Policy] = {
        "tool_status": ToolStatus({"canvas": "", "dt-*": ""}),
        "autonomy": Autonomy(Level.FULL),
        "permissions": Permissions(frozenset({"*"})),
        "rules": load_rules(None, workspace=here, home=home, disk=ThisDisk()),
        "rules_by_name": load_rules(None, workspace=here, home=home),
    }
    policies["chain"] = Chain(tuple(policies[name] for name in list(policies)[:4]))
    told: dict[str, dict[str, float]] = {}
    for kind, example in CALLS.items():
        call = example_call(example)
        told[kind] = {name: await measure(policy, call) for name, policy in policies.items()}
        print(f"{kind:<10}", "  ".join(f"{name} {took} µs" for name, took in told[kind].items()))
    print(json.dumps({"unit": "µs, median", **told}))


if __name__ == "__main__":
    asyncio.run(main())
