"""Metrics for Prometheus: `worker.py` and `http.py` tell what one process did, `fleet.py` what the database says."""
