"""Planted: a Python function sends a request for each row, which a replay sends again."""

import http.client

from pyspark.sql import functions as f

from tests.support.jobs.drilled.place import files, make_job, numbers

job = make_job("post_in_udf")
rows = job.read(numbers(), uid="numbers")


@f.udf("bigint")
def alert(id: int) -> int:
    if id % 1000 == 0:
        connection = http.client.HTTPConnection("127.0.0.1", 9, timeout=1)
        try:
            connection.connect()
        except OSError:
            connection.sock = _Deaf()
        connection.request("POST", "/alert", b"{}")
    return id


class _Deaf:
    """No server listens; the request is sent all the same."""

    def sendall(self, data: bytes) -> None:
        pass


job.write(rows.select(alert("id").alias("id")), files(), uid="out")
