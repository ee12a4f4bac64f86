"""The processes of a job: a supervisor, its driver, perhaps a standby, and the registry of this machine's jobs."""
