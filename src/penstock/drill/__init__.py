"""Drills a user's own job: the same input once under real faults and once without, into outputs of their own.

`run` starts the job, kills and pauses its processes by a seeded schedule, and stops it. `effects` notes what the job's
own functions do besides giving rows. `verdict` compares what is visible with the ledger and with the calm run, names
mistakes, and writes the report. Imports the audit, the reader of anomalies, descriptions of jobs, and what runs them.
"""
