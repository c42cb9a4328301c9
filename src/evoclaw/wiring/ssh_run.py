"""Builds a run whose calls go to another machine over SSH."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.ports import Approver, Ports
from evoclaw.core.routes import Route

if TYPE_CHECKING:
    from evoclaw.core.state import PreparedRun
    from evoclaw.governance.autonomy import Level


@asynccontextmanager
async def ssh_ports(
    *,
    model: str | None,
    url: str,
    level: Level,
    tools: Sequence[str] | None,
    approver: Approver,
    env: Mapping[str, str],
    run: PreparedRun,
    undoable: bool = True,
) -> AsyncGenerator[Ports]:
    """The ports of a run that works on `ssh://user@host/folder`; closed when the block ends.

    With `tools`, only the tools of these names are offered. Unless it is `undoable`, nothing is
    kept of the files that it changes.
    """
    from evoclaw.executors.local import LocalExecutor
    from evoclaw.executors.ssh.connection import SshConnection, parse_ssh_url
    from evoclaw.executors.ssh.processes import SshProcesses
    from evoclaw.executors.ssh.tracked_files import TrackedSshFiles
    from evoclaw.providers.registry import open_provider
    from evoclaw.tools.sets import coding, select
    from evoclaw.wiring.before_images import keep_changes
    from evoclaw.wiring.governance import governed_ports, open_governance
    from evoclaw.wiring.local_run import capabilities_for_level
    from evoclaw.wiring.settings import model_for_run, provider_options

    target = parse_ssh_url(url)
    offered = coding() if tools is None else select(coding(), tools, setting="--tools")
    capabilities = capabilities_for_level(level, env)
    name = await model_for_run(model, env)
    connection = SshConnection(target.host, port=target.port, user=target.user)
    files = TrackedSshFiles(connection, target.path)
    try:
        await files.check()
        processes = SshProcesses(connection, target.path)
        executor = LocalExecutor(offered, files=files, exec=processes)
        async with AsyncExitStack() as stack:
            opened = await stack.enter_async_context(open_governance(env))
            governance = replace(opened, sandboxed=False)
            options = provider_options(governance.settings)
            provider = await stack.enter_async_context(open_provider(name, env, options))
            steps = await keep_changes(url, env, stack) if undoable else []
            yield await stack.enter_async_context(
                governed_ports(
                    governance,
                    provider=provider,
                    model=name,
                    routes=[Route(executor, machine=target.host)],
                    steps=steps,
                    approver=approver,
                    level=level,
                    capabilities=capabilities,
                    workspace=Path(target.path),
                    run=run,
                    env=env,
                )
            )
    finally:
        await connection.close()
