"""Mutation tests: small faults are put into the modules that must not have any, and the unit tests must notice.

`make mutants` tries them all; `python -m tests.mutants epoch/watermark.py` those of one module, with every mutant that no test
caught. `targets.toml` names modules and tests, `survivors.toml` says of each mutant that survives why it may.
"""
