"""Builds the runs with which `evoclaw undo` undoes the file changes of another run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError
from evoclaw.core.events import CallStarted
from evoclaw.core.ports import Approver, Ports
from evoclaw.core.routes import Route

if TYPE_CHECKING:
    from evoclaw.core.events import Record
    from evoclaw.core.state import PreparedRun
    from evoclaw.executors.ssh.connection import SshTarget
    from evoclaw.executors.ssh.tracked_files import TrackedSshFiles
    from evoclaw.executors.tracked_files import RestorableFiles
    from evoclaw.governance.autonomy import Level
    from evoclaw.store.sessions.sessions import SessionStore


@asynccontextmanager
async def undo_ports(
    root: str, *, level: Level, approver: Approver, env: Mapping[str, str], run: PreparedRun
) -> AsyncGenerator[Ports]:
    """The ports of a run that undoes another one below a folder, or an `ssh://` URL."""
    from evoclaw.edge.undo import KeepBeforeImages, undo_tool
    from evoclaw.executors.call_steps import SignReceipt
    from evoclaw.executors.local import LocalExecutor
    from evoclaw.executors.ssh.connection import parse_ssh_url
    from evoclaw.executors.tracked_files import TrackedFiles
    from evoclaw.providers.scripted import DIRECT_MODEL, DirectProvider
    from evoclaw.wiring.before_images import open_before_images
    from evoclaw.wiring.governance import governed_ports, open_governance
    from evoclaw.wiring.local_run import capabilities_for_level
    from evoclaw.wiring.receipts import open_signer

    async with AsyncExitStack() as stack:
        images = await stack.enter_async_context(open_before_images(env))
        if images is None:
            raise ConfigError("nothing can be undone: `undo_hours` under [store] is 0")
        files: RestorableFiles
        if root.startswith("ssh://"):
            target = parse_ssh_url(root)
            workspace, machine = Path(target.path), target.host
            files = await _open_ssh_files(target, stack)
        else:
            workspace, machine, files = Path(root), "", TrackedFiles(root)
        governance = await stack.enter_async_context(open_governance(env))
        signer = await stack.enter_async_context(open_signer(env))
        executor = LocalExecutor([undo_tool(images, files, root)], sound=True)
        yield await stack.enter_async_context(
            governed_ports(
                governance,
                provider=DirectProvider(),
                model=DIRECT_MODEL,
                routes=[Route(executor, machine=machine)],
                steps=[KeepBeforeImages(images, root), SignReceipt(signer)],
                approver=approver,
                level=level,
                capabilities=capabilities_for_level(level, env),
                workspace=workspace,
                run=run,
                env=env,
            )
        )


async def _open_ssh_files(target: SshTarget, stack: AsyncExitStack) -> TrackedSshFiles:
    from evoclaw.executors.ssh.connection import SshConnection
    from evoclaw.executors.ssh.tracked_files import TrackedSshFiles

    connection = SshConnection(target.host, port=target.port, user=target.user)
    stack.push_async_callback(connection.close)
    files = TrackedSshFiles(connection, target.path)
    await files.check()
    return files


async def with_subruns(records: Sequence[Record], env: Mapping[str, str]) -> list[Record]:
    """The records of a recorded run and of its stored sub-runs, in the order of their time."""
    from evoclaw.orchestrator.sessions.run_sessions import SUBRUN_STARTING_TOOLS
    from evoclaw.wiring.store import open_sessions

    started = (record.event for record in records if isinstance(record.event, CallStarted))
    if not any(event.name in SUBRUN_STARTING_TOOLS for event in started):
        return list(records)
    async with open_sessions(env) as store:
        found = [*records, *await _subrun_records(store, records[0].run_id)]
    return sorted(found, key=lambda record: record.at)


async def _subrun_records(store: SessionStore, run_id: str) -> list[Record]:
    found: list[Record] = []
    for child in await store.runs(parent_run=run_id, limit=100):
        found += await store.records(child.id)
        found += await _subrun_records(store, child.id)
    return found
