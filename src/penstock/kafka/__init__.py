"""What Kafka's source, sink and tools share. Nothing here knows epochs, rows or Spark.

`settings`: what a user may say, and what we set. `translation`: the same connection in each client's spelling.
`connections`: the driver's requests to a cluster. `librdkafka`: a task's producer, with `answers`, which counts the
requests that were answered. `faults`: the clients' errors as ours.

May import `errors`, `durations`, `deadline` and `secrets`. Others need `Connections`, `Handle`, and the three modules
`settings`, `translation` and `faults`.
"""
