"""Failpoints for tests of a job or a sink; `penstock.failpoints` explains them."""

from penstock.failpoints import ONCE, POINTS, RELEASE, VARIABLE, InjectedFault, active, failpoint, hooked, parse, reload

__all__ = [
    "ONCE", "POINTS", "RELEASE", "VARIABLE", "InjectedFault", "active", "failpoint", "hooked", "parse", "reload",
]  # fmt: skip
