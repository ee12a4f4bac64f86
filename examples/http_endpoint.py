"""Rows to an HTTP endpoint, exactly once, by idempotency keys.

    URL=http://localhost:8000/payments python examples/http_endpoint.py

Every request carries an `Idempotency-Key` that is the same whenever these rows are sent, and never used for others. An
endpoint that answers a key it knows without doing the work again makes the whole chain exactly-once.
"""

import json
import os
import urllib.error
import urllib.request
from functools import partial

from penstock import Checkpoints, DataGenSource, Job, WriteAheadSink
from penstock.errors import DataError


def post(url, rows, epoch_id):
    """One request for each batch: the log gives the same batches in the same order at every try."""
    for number, batch in enumerate(rows):
        body = "".join(json.dumps(row, default=str) + "\n" for row in batch.to_pylist()).encode()
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": f"{epoch_id}:{number}"}
        try:
            urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10).close()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (400, 413, 422):  # the endpoint will never take them; anything else may pass
                raise DataError(
                    f"{url} refused rows of {epoch_id}: {error.code} {error.reason}.",
                    safe="they wait in the log, and nothing later was sent.",
                    to_do="change what the endpoint accepts, then start the job again.",
                ) from error
            raise


def endpoint(url, log):
    return WriteAheadSink(partial(post, url), log=log, idempotent=True, name=f"POST to {url}")


if __name__ == "__main__":
    storage = os.environ.get("CHECKPOINTS", os.path.expanduser("~/penstock-examples"))
    rows = int(os.environ.get("ROWS", 10_000))
    url = os.environ.get("URL", "http://localhost:8000/payments")
    job = Job("http", checkpoints=Checkpoints(storage=storage))
    payments = job.read(DataGenSource(rows, max_rows_per_epoch=max(1, rows // 5)), uid="payments")
    job.write(payments.where("amount >= 100"), endpoint(url, f"{storage}/http-log"), uid="endpoint")
    print(job.explain())
    job.run()
