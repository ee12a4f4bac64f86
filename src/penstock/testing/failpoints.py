"""Failpoints for the tests of a job or of a sink: import them from here; `penstock.failpoints` explains them."""

from penstock.failpoints import ONCE, POINTS, RELEASE, VARIABLE, InjectedFault, active, failpoint, hooked, parse, reload

__all__ = [
    "ONCE",
    "POINTS",
    "RELEASE",
    "VARIABLE",
    "InjectedFault",
    "active",
    "failpoint",
    "hooked",
    "parse",
    "reload",
]
