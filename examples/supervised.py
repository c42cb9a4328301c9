"""A policy asks before calls that write, and an approver answers; on real, temporary files."""

import asyncio
import tempfile
from pathlib import Path

from evoclaw import (
    Approval,
    Ask,
    Autonomy,
    Call,
    Decision,
    Level,
    LocalExecutor,
    Ports,
    Scripted,
    calls,
    says,
    watch,
)
from evoclaw.core.events import ApprovalAnswered, CallFinished, CallJudged, RunFinished
from evoclaw.executors.files import LocalFiles
from evoclaw.executors.processes import LocalProcesses
from evoclaw.tools.sets import coding


class OnlyNotes:
    """Replaces a person: approves changes of notes, nothing else."""

    async def approve(self, call: Call, ask: Ask) -> Approval:
        if call.name in ("edit", "write") and str(call.arguments["path"]).endswith(".md"):
            return Approval(Decision.ONCE)
        return Approval(Decision.DENY, "only notes may be changed")


async def main(folder: str) -> None:
    model = Scripted(
        calls(("read", {"path": "todo.md"})),
        calls(("edit", {"path": "todo.md", "old_string": "milk", "new_string": "oat milk"})),
        calls(("bash", {"command": "rm todo.md"})),
        says("It is oat milk now. I was not allowed to delete the file."),
    )
    executor = LocalExecutor(coding(), files=LocalFiles(folder), exec=LocalProcesses(folder))
    ports = Ports(model, executor, Autonomy(Level.SUPERVISED), OnlyNotes())
    async for record in watch("Make it oat milk, then delete the list", ports):
        match record.event:
            case CallJudged(_, verdict):
                print(f"policy: {verdict}")
            case ApprovalAnswered(_, decision, reason):
                print(f"  person: {decision} {reason}")
            case CallFinished(result):
                print(f"  {result.name}: {result.text.splitlines()[0]}")
            case RunFinished(stop, text):
                print(f"{stop}: {text}")
            case _:
                pass


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        todo = Path(place, "todo.md")
        todo.write_text("- buy milk\n")
        asyncio.run(main(place))
        print(todo.read_text().strip())
