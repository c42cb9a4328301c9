"""From an agent's definition to its answer: the seed's integration tests, by number."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.errors import AgentNotFound
from evoclaw.core.ports import Ports
from evoclaw.executors.files import LocalFiles
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.processes import LocalProcesses
from evoclaw.governance.permissions import Permissions
from evoclaw.orchestrator.runs.invoke import Invoker
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.tools.sets import coding

WORKER = Agent(
    "worker",
    "scripted/model",
    prompt="You work.",
    capabilities=frozenset({"shell", "file_read"}),
    settings=LoopSettings(output_fields=("answer",)),
)
TALKER = Agent("talker", "scripted/model")


def invoker(provider: Scripted, folder: Path) -> Invoker:
    executor = LocalExecutor(coding(), files=LocalFiles(folder), exec=LocalProcesses(folder))
    ports = Ports(provider, executor, Permissions(WORKER.capabilities))
    return Invoker({"worker": WORKER, "talker": TALKER}, ports)


async def test_30_invoke_iterative_completes_a_multi_step_task_with_the_real_shell(
    tmp_path: Path,
) -> None:
    provider = Scripted(
        calls(("bash", {"command": "seq 3 > n; echo made"})),
        calls(("read", {"path": "n"})),
        says("It holds 1 to 3."),
        says("COMPLETED: 1 to 3"),
    )
    answer = await invoker(provider, tmp_path).invoke_iterative("worker", {"task": "count"})
    assert (tmp_path / "n").read_text() == "1\n2\n3\n"
    assert answer.output == {"answer": "1 to 3"}
    assert answer.tools_used == ("bash", "read")
    assert answer.termination_reason == "completed"
    assert set(provider.requests[0].tools) == {"read", "glob", "grep", "bash"}


async def test_31_invoke_makes_one_request_without_tools(tmp_path: Path) -> None:
    provider = Scripted(says('```json\n{"answer": 4}\n```'))
    answer = await invoker(provider, tmp_path).invoke("worker", {"question": "2+2"})
    assert answer.output == {"answer": 4}
    assert len(provider.requests) == 1
    assert provider.requests[0].tools == ()


async def test_32_the_iterative_answer_has_the_documented_shape(tmp_path: Path) -> None:
    provider = Scripted(calls(("read", {"path": "no"})), says("hm"), says("COMPLETED: gone"))
    answer = await invoker(provider, tmp_path).invoke_iterative("worker", {})
    shape = msgspec.to_builtins(answer)
    run_id = shape.pop("run_id")
    assert len(run_id) == 32
    assert shape == {
        "agent": "worker",
        "output": {"answer": "gone"},
        "raw_response": "gone",
        "tokens_used": 45,
        "model": "scripted/model",
        "iterations": 3,
        "tool_calls_made": 1,
        "tools_used": ("read",),
        "termination_reason": "completed",
    }


async def test_an_unknown_agent_error_lists_the_known_agents(tmp_path: Path) -> None:
    with pytest.raises(AgentNotFound, match="unknown agent 'x'; known agents: worker, talker"):
        await invoker(Scripted(), tmp_path).invoke("x", {})
