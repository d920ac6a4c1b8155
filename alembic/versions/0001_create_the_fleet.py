"""Create the fleet: tasks, leases, queues, and what is kept about them."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# The hot table. Dead versions come at the rate of the work, so vacuum looks early and does not nap.
TASK = """
CREATE TABLE fleet.task (
  id uuid PRIMARY KEY,
  queue text NOT NULL,
  name text NOT NULL,
  args jsonb NOT NULL DEFAULT '{}',
  priority smallint NOT NULL DEFAULT 5,
  state text NOT NULL DEFAULT 'QUEUED',
  run_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at timestamptz,
  idempotent boolean,
  repeatable boolean NOT NULL DEFAULT false,
  attempt integer NOT NULL DEFAULT 0,
  failures integer NOT NULL DEFAULT 0,
  losses integer NOT NULL DEFAULT 0,
  max_attempts integer NOT NULL,
  max_losses integer NOT NULL,
  timeout interval,
  lease_id uuid,
  started_at timestamptz,
  finished_at timestamptz,
  cancel_requested boolean NOT NULL DEFAULT false,
  failure_code text,
  failure_reason text,
  result jsonb,
  resolved_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  traceparent text,
  CONSTRAINT task_state CHECK (state IN ('QUEUED', 'RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELLED')),
  CONSTRAINT task_held CHECK ((state = 'RUNNING') = (lease_id IS NOT NULL)),
  CONSTRAINT task_priority CHECK (priority BETWEEN 0 AND 9),
  CONSTRAINT task_run_at CHECK (run_at BETWEEN '1970-01-01 00:00:00Z' AND '9999-12-31 23:59:59.999999Z'),
  CONSTRAINT task_budgets CHECK (max_attempts >= 1 AND max_losses >= 1)
) WITH (
  fillfactor = 80,
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.05
);

CREATE INDEX task_ready ON fleet.task (queue, priority, run_at, id) WHERE state = 'QUEUED';

CREATE INDEX task_running ON fleet.task (lease_id) WHERE state = 'RUNNING';

CREATE INDEX task_expiring ON fleet.task (expires_at) WHERE state = 'QUEUED' AND expires_at IS NOT NULL;

CREATE INDEX task_dead ON fleet.task (queue, id) WHERE state = 'FAILED' AND resolved_at IS NULL;
"""

# Nothing that a heartbeat changes is indexed, and there is room on the page: a renewal is a HOT update.
LEASE = """
CREATE TABLE fleet.lease (
  id uuid PRIMARY KEY,
  worker text NOT NULL,
  host text NOT NULL,
  pid integer NOT NULL,
  version text NOT NULL,
  queues text[] NOT NULL,
  slots integer NOT NULL,
  schema_min integer NOT NULL,
  schema_max integer NOT NULL,
  ttl interval NOT NULL,
  state text NOT NULL,
  idle boolean NOT NULL DEFAULT false,
  granted_at timestamptz NOT NULL,
  renewed_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  cleared_at timestamptz,
  CONSTRAINT lease_state CHECK (state IN ('LIVE', 'DRAINING', 'RELEASED', 'REAPED'))
) WITH (
  fillfactor = 50,
  autovacuum_vacuum_threshold = 50,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_cost_delay = 0
);
"""

REST = """
CREATE TABLE fleet.queue (
  name text PRIMARY KEY,
  paused boolean NOT NULL DEFAULT false,
  generation bigint NOT NULL DEFAULT 0,
  retention interval
);

CREATE TABLE fleet.cancel_request (
  lease_id uuid NOT NULL,
  task_id uuid NOT NULL,
  attempt integer NOT NULL,
  requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (lease_id, task_id, attempt)
);

CREATE TABLE fleet.attempt (
  task_id uuid NOT NULL,
  attempt integer NOT NULL,
  late boolean NOT NULL DEFAULT false,
  lease_id uuid NOT NULL,
  outcome text NOT NULL,
  detail text,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (task_id, attempt, late)
);

CREATE TABLE fleet.submission (
  scope text NOT NULL,
  key text NOT NULL,
  task_id uuid NOT NULL,
  fingerprint text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (scope, key)
);

CREATE INDEX submission_created ON fleet.submission (created_at);

CREATE TABLE fleet.counter (
  writer uuid NOT NULL,
  name text NOT NULL,
  queue text NOT NULL,
  reason text NOT NULL,
  value bigint NOT NULL,
  PRIMARY KEY (writer, name, queue, reason)
);

CREATE TABLE fleet.audit (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  actor text NOT NULL,
  action text NOT NULL,
  subject text NOT NULL,
  detail text
);
"""

# Who may use the HTTP API. A secret is never here, only its SHA-256.
API_TOKEN = """
CREATE TABLE fleet.api_token (
  id uuid PRIMARY KEY,
  name text NOT NULL,
  hash bytea NOT NULL UNIQUE,
  scopes text[] NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  last_used_at timestamptz,
  expires_at timestamptz,
  revoked_at timestamptz,
  CONSTRAINT api_token_hash CHECK (length(hash) = 32),
  CONSTRAINT api_token_scopes CHECK (scopes <@ ARRAY['read', 'submit', 'operate'] AND cardinality(scopes) > 0)
);

CREATE UNIQUE INDEX api_token_name ON fleet.api_token (name) WHERE revoked_at IS NULL;
"""

# A notification is a hint, and NOTIFY takes one lock for the whole database at commit: so it is sent only where a worker
# of that queue says that it sleeps. A snapshot that may be older than that worker's word (REPEATABLE READ, SERIALIZABLE)
# cannot see it and always notifies. Tasks due within 10 s (the longest poll interval) are announced too.
WAKE = """
CREATE FUNCTION fleet.wake() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  soon timestamptz := clock_timestamp() + interval '10 seconds';
  blind boolean := current_setting('transaction_isolation') <> 'read committed';
  waking text;
BEGIN
  FOR waking IN
    WITH due AS MATERIALIZED (
      SELECT DISTINCT queue
      FROM new_tasks
      WHERE state = 'QUEUED' AND run_at <= soon
    )
    SELECT due.queue
    FROM due
    WHERE blind
      OR EXISTS (SELECT FROM fleet.lease
                 WHERE lease.idle AND lease.state = 'LIVE' AND lease.expires_at > clock_timestamp()
                   AND due.queue = ANY (lease.queues))
  LOOP
    PERFORM pg_notify('fleet', left(waking, 1000));
  END LOOP;
  RETURN NULL;
END
$$;

CREATE TRIGGER wake
AFTER INSERT ON fleet.task
REFERENCING NEW TABLE AS new_tasks
FOR EACH STATEMENT EXECUTE FUNCTION fleet.wake();
"""

# Whoever registers a lease comes through here. The lock is the one that a migration takes before it judges the leases and
# commits; each statement of a function has a snapshot of its own, so the number is read as it is after the wait.
ENTER = """
CREATE FUNCTION fleet.enter() RETURNS text LANGUAGE sql AS $$
  SELECT pg_advisory_xact_lock_shared(439905248629);
  SELECT version_num FROM fleet.fleet_alembic_version;
$$;
"""


def upgrade() -> None:
    for part in (TASK, LEASE, REST, API_TOKEN, WAKE, ENTER):
        op.execute(part)
