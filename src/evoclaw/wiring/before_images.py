"""Opens the before-images of `evoclaw run` in the data folder: what files held before a change."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from evoclaw.core.pipeline import Step

if TYPE_CHECKING:
    from evoclaw.orchestrator.runs.undo import MachineChanges
    from evoclaw.store.calls.before_images import BeforeImages

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_before_images(env: Mapping[str, str]) -> AsyncGenerator[BeforeImages | None]:
    """What runs of this machine changed in files; None if nothing is kept."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.store.calls.before_images import BeforeImages
    from evoclaw.wiring.record_key import KeyLost, record_cipher
    from evoclaw.wiring.settings import orchestrator_settings

    store = orchestrator_settings(env).store
    if not store.undo_hours:
        yield None
        return
    try:
        cipher = record_cipher(env)
    except KeyLost as problem:
        logger.warning("changes of files cannot be undone: %s", problem)
        yield None
        return
    images = BeforeImages(
        default_data_folder(env) / "undo",
        cipher=cipher,
        max_file_bytes=store.undo_bytes,
        retention_s=store.undo_hours * 3600,
    )
    yield images
    await images.prune()


async def keep_changes(root: str, env: Mapping[str, str], stack: AsyncExitStack) -> list[Step]:
    """The step that keeps what calls change below a folder or an `ssh://` URL, if any."""
    from evoclaw.edge.undo import KeepBeforeImages

    images = await stack.enter_async_context(open_before_images(env))
    return [] if images is None else [KeepBeforeImages(images, root)]


async def changes_by_root(
    changes: MachineChanges, env: Mapping[str, str]
) -> tuple[list[MachineChanges], list[str]]:
    """The changes of local and SSH calls by their root, and the files that are not kept any more.

    The root takes the place of the machine.
    """
    from evoclaw.edge.undo import stored_changes
    from evoclaw.orchestrator.runs.undo import MachineChanges

    calls: dict[str, list[str]] = {}
    paths: dict[str, dict[str, None]] = {}
    async with open_before_images(env) as images:
        for call_id in changes.calls:
            found = None if images is None else await stored_changes(images, call_id)
            if found is not None:
                calls.setdefault(found.root, []).append(call_id)
                named = (change.path for change in found.changes)
                paths.setdefault(found.root, {}).update(dict.fromkeys(named))
    kept = {path for named in paths.values() for path in named}
    by_root = [MachineChanges(root, tuple(calls[root]), tuple(paths[root])) for root in calls]
    return by_root, [path for path in changes.paths if path not in kept]
