"""Fleet in the public harness hardbyte/postgresql-job-queue-benchmarking: see README.md."""
