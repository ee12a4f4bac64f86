"""Mutation tests: small faults are put into the modules that must not have any, and the unit tests must notice.

`make mutants` tries them all, `make mutants OF=engine/watermark.py` those of one module. `targets.toml` names modules
and tests, `survivors.toml` says of each mutant that survives why it may.
"""
