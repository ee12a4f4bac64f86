"""What a user may steer, in Python, in a file or by `-D`. Durations are seconds, or text such as `200ms` or `15min`."""

from penstock.config.checkpoints import Checkpoints, Mode, Retention
from penstock.config.state import StateBackend
from penstock.config.values import size
from penstock.durations import seconds

__all__ = ["Checkpoints", "Mode", "Retention", "StateBackend", "seconds", "size"]
