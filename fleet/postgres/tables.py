"""The tables as SQLAlchemy sees them, for questions and for checking the migrations, which alone make the schema."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Identity,
    Integer,
    Interval,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, JSONB, TIMESTAMP, UUID

metadata = MetaData(schema="fleet")
_moment = TIMESTAMP(timezone=True)
_now = text("clock_timestamp()")

task = Table(
    "task",
    metadata,
    Column("id", UUID, primary_key=True),
    Column("queue", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("args", JSONB, nullable=False, server_default=text("'{}'")),
    Column("priority", SmallInteger, nullable=False, server_default=text("5")),
    Column("state", Text, nullable=False, server_default=text("'QUEUED'")),
    Column("run_at", _moment, nullable=False, server_default=_now),
    Column("expires_at", _moment),
    Column("idempotent", Boolean),  # what the submitter said
    Column("repeatable", Boolean, nullable=False, server_default=text("false")),  # what the claim decided
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("losses", Integer, nullable=False, server_default=text("0")),
    Column("max_attempts", Integer, nullable=False),
    Column("max_losses", Integer, nullable=False),
    Column("timeout", Interval),
    Column("lease_id", UUID),
    Column("started_at", _moment),
    Column("finished_at", _moment),
    Column("cancel_requested", Boolean, nullable=False, server_default=text("false")),
    Column("failure_code", Text),
    Column("failure_reason", Text),
    Column("result", JSONB),
    Column("resolved_at", _moment),
    Column("created_at", _moment, nullable=False, server_default=_now),
    Column("traceparent", Text),  # the span that submitted it, as W3C Trace Context writes it
)

lease = Table(
    "lease",
    metadata,
    Column("id", UUID, primary_key=True),
    Column("worker", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("queues", ARRAY(Text), nullable=False),
    Column("slots", Integer, nullable=False),
    Column("schema_min", Integer, nullable=False),  # the schemas that its code works with
    Column("schema_max", Integer, nullable=False),
    Column("ttl", Interval, nullable=False),
    Column("state", Text, nullable=False),
    Column("idle", Boolean, nullable=False, server_default=text("false")),
    Column("granted_at", _moment, nullable=False),
    Column("renewed_at", _moment, nullable=False),
    Column("expires_at", _moment, nullable=False),
    Column("cleared_at", _moment),
)

queue = Table(
    "queue",
    metadata,
    Column("name", Text, primary_key=True),
    Column("paused", Boolean, nullable=False, server_default=text("false")),
    Column("generation", BigInteger, nullable=False, server_default=text("0")),
    Column("retention", Interval),  # null: as the settings say
)

cancel_request = Table(
    "cancel_request",
    metadata,
    Column("lease_id", UUID, nullable=False),
    Column("task_id", UUID, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("requested_at", _moment, nullable=False, server_default=_now),
    PrimaryKeyConstraint("lease_id", "task_id", "attempt"),
)

attempt = Table(
    "attempt",
    metadata,
    Column("task_id", UUID, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("late", Boolean, nullable=False, server_default=text("false")),
    Column("lease_id", UUID, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("detail", Text),
    Column("at", _moment, nullable=False, server_default=_now),
    PrimaryKeyConstraint("task_id", "attempt", "late"),
)

submission = Table(
    "submission",
    metadata,
    Column("scope", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("task_id", UUID, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("created_at", _moment, nullable=False, server_default=_now),
    PrimaryKeyConstraint("scope", "key"),
)

counter = Table(
    "counter",
    metadata,
    Column("writer", UUID, nullable=False),
    Column("name", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("value", BigInteger, nullable=False),
    PrimaryKeyConstraint("writer", "name", "queue", "reason"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", _moment, nullable=False, server_default=_now),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("detail", Text),
)

api_token = Table(
    "api_token",
    metadata,
    Column("id", UUID, primary_key=True),
    Column("name", Text, nullable=False),
    Column("hash", BYTEA, nullable=False, unique=True),  # SHA-256 of the secret, which is nowhere
    Column("scopes", ARRAY(Text), nullable=False),
    Column("created_at", _moment, nullable=False, server_default=_now),
    Column("last_used_at", _moment),  # to the minute
    Column("expires_at", _moment),
    Column("revoked_at", _moment),
)
