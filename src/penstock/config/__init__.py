"""Options that a user sets in Python, in a file or by `-D`. Durations are seconds, or text such as `200ms` or `15min`.

`checkpoints`, `state`, `restart_strategy` and `operations` declare them: an `Option` has a key, a default and a
meaning; `scripts/settings_table.py` names the tests that show it. `levels` lists all of them and reads what each place
sets, `resolve` combines the places.
May import `storage` and what is below it.
"""

from penstock.config.checkpoints import Checkpoints, Mode, Retention
from penstock.config.option import size
from penstock.config.state import StateBackend
from penstock.deadline import seconds

__all__ = ["Checkpoints", "Mode", "Retention", "StateBackend", "seconds", "size"]
