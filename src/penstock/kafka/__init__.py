"""What Kafka's source, sink and tools share; knows no epochs, rows or Spark.

`settings`: a connection's settings in each client's spelling. `connections`: the driver's requests to a cluster,
and a job's positions for lag tools. `tokens`: OAUTHBEARER's. `librdkafka`: a task's producer. `errors`: client errors
as Penstock's. May import `errors`, `durations`, `deadline` and `secrets`.
"""
