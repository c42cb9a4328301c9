"""Ids of runs: unique over all tenants, whatever id a user chooses."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TypeAlias

from evoclaw.core.labels import LOCAL_PRINCIPAL

TenantKey: TypeAlias = tuple[str, str]
"""A tenant, and an id that is unique within it."""


TENANT_TAG = re.compile(r"t[0-9a-f]{16}-")
"""The prefix of run ids of tenants other than `local`."""


def tenant_run_id(tenant: str, run_id: str) -> str:
    """The id of a tenant's run: no run of another tenant can have it, whatever id a user chooses.

    Edges, ledgers and approvals know a run and its calls by the id alone. Runs of `local` keep the
    ids that were chosen for them.
    """
    if tenant == LOCAL_PRINCIPAL.tenant and not TENANT_TAG.match(run_id):
        return run_id
    tag = f"t{sha256(tenant.encode()).hexdigest()[:16]}-"
    return run_id if run_id.startswith(tag) else f"{tag}{run_id}"
