"""What is visible in a job's sinks, read by readers of their own, beside what its ledger decided.

Shares no code with writers and committers: `engine.hashing` computes Spark's checksums once more. (Tasks of
`format("penstock")` hash by the same module: of their rows the hash is not checked.)
"""
