"""What a user may set, in Python, in a file or by `-D`. Durations are seconds, or text such as `200ms` or `15min`.

One module for each thing: `checkpoints`, `state`, `restart_strategy`, `recovery`, `rest`, `spark_conf`. An `option` has
a key, a default and a test that shows it; the `registry` finds it by its key. `load` reads the file and `-D` as text,
`levels` understands what each place says, `settings.resolve` makes one answer of it, `table` writes the reference.

May import `storage` and what is below it. Others need `resolve`, and the names here.
"""

from penstock.config.checkpoints import Checkpoints, Mode, Retention
from penstock.config.option import size
from penstock.config.state import StateBackend
from penstock.durations import seconds

__all__ = ["Checkpoints", "Mode", "Retention", "StateBackend", "seconds", "size"]
