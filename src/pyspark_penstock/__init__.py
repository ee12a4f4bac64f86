"""Found by Spark by the beginning of its name, so that `format("penstock")` works where Penstock is installed, without
a registration: Spark imports each such package in a worker of its own when a driver first looks for a format."""

import contextlib

from penstock.errors import ConfigurationError

with contextlib.suppress(ConfigurationError):  # a PySpark without the interface must go on without the format
    from penstock.job.stream_sink import StreamSink as DefaultSource

    __all__ = ["DefaultSource"]
