"""The steps of the job queue on PostgreSQL: claim, release and resume runs, and offer sessions."""

from __future__ import annotations

from evoclaw.store.databases.steps import Procedure
from evoclaw.store.runs.claims import IS_OPEN, RESUMABLE
from evoclaw.store.runs.session_steps import DECLARE_SESSION, SESSION_FUNCTIONS, postgres_only
from evoclaw.store.sessions.statements import run_by_id


def _job_step(name: str, postgres: str) -> Procedure:
    return Procedure(
        name=name, sqlite=postgres_only, functions=SESSION_FUNCTIONS, postgres=postgres
    )


CLAIM_OF_JOB = _job_step(
    "claim_of_job",
    f"""{DECLARE_SESSION}
    v_job bigint := (a->>2)::bigint;
    v_run text;
    v_epoch bigint;
BEGIN
    PERFORM 1 FROM procrastinate_jobs
    WHERE id = v_job AND worker_id = (a->>3)::bigint AND attempts = (a->>4)::bigint
        AND status = 'doing' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    v_run := step_next_run(v_tenant, v_session, (a->>5)::float8, a->>6);
    IF v_run IS NOT NULL THEN
        UPDATE runs SET epoch = epoch + 1, holder = a->>6, lease_until = (a->>7)::float8
        WHERE {run_by_id("v_tenant", "v_run")} AND {IS_OPEN}
            AND (holder = '' OR lease_until <= (a->>5)::float8)
        RETURNING epoch INTO v_epoch;
    END IF;
    IF v_epoch IS NULL THEN
        PERFORM procrastinate_finish_job_v1(v_job, 'succeeded', true);
        RETURN NULL;
    END IF;
    RETURN jsonb_build_array(v_run, v_epoch);
END
""",
)
RELEASE_RUN = _job_step(
    "release_run",
    f"""{DECLARE_SESSION}
    v_run text := a->>2;
    v_job bigint;
BEGIN
    UPDATE runs
    SET holder = CASE WHEN stop IS NULL THEN '' ELSE '{RESUMABLE}' END, lease_until = 0
    WHERE {run_by_id("v_tenant", "v_run")} AND epoch = (a->>3)::bigint AND holder = a->>4;
    IF to_regclass('procrastinate_jobs') IS NOT NULL THEN
        SELECT id INTO v_job FROM procrastinate_jobs
        WHERE lock = v_tenant || '/' || v_session AND worker_id = (a->>5)::bigint
            AND status = 'doing';
    END IF;
    IF v_job IS NULL THEN  -- it was claimed when it was created
        PERFORM step_offer_session(v_tenant, v_session, (a->>6)::float8, a->>4);
    ELSE
        PERFORM procrastinate_retry_job_v2(v_job, NULL, NULL, NULL, NULL);
        PERFORM pg_notify(
            'procrastinate_any_queue_v1', '{{"type": "job_inserted", "job_id": 0}}'
        );
    END IF;
    RETURN NULL;
END
""",
)
RESUME_RUN = _job_step(
    "resume_run",
    f"""{DECLARE_SESSION}
BEGIN
    UPDATE runs SET holder = '{RESUMABLE}', lease_until = 0
    WHERE {run_by_id("v_tenant", "a->>2")} AND stop = 'waiting' AND holder = '';
    IF FOUND THEN
        PERFORM step_offer_session(v_tenant, v_session, (a->>3)::float8, a->>4);
    END IF;
    RETURN NULL;
END
""",
)
OFFER_JOB = _job_step(
    "offer_job",
    """
BEGIN
    PERFORM step_offer_session(a->>0, a->>1, (a->>2)::float8, a->>3);
    RETURN NULL;
END
""",
)
JOB_PROCEDURES = (CLAIM_OF_JOB, RELEASE_RUN, RESUME_RUN, OFFER_JOB)
