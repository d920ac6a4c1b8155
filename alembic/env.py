"""Runs the migrations on the connection it is given, or prints them (`fleet db sql`)."""

from alembic import context

from fleet.postgres.tables import metadata

options = {
    "target_metadata": metadata,
    "version_table": "fleet_alembic_version",
    "version_table_schema": "fleet",
    "include_schemas": True,
    "include_name": lambda name, kind, parents: kind != "schema" or name == "fleet",
    "transactional_ddl": True,
    "transaction_per_migration": True,  # one may build its index outside of any: see docs/upgrade.md
}

if context.is_offline_mode():
    context.configure(dialect_name="postgresql", literal_binds=True, **options)
    with context.begin_transaction():
        context.run_migrations()
else:
    judge = context.config.attributes["judge"]
    context.configure(connection=context.config.attributes["connection"], on_version_apply=judge, **options)
    with context.begin_transaction():
        context.run_migrations()
