"""A running worker process. No SQL here."""
