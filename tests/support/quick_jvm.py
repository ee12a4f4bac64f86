"""Java options for drivers of tests: none lives long enough to gain from the better compiler. `make setup` has written
the archives of classes that they start from (`penstock dev archive`)."""

VARIABLE = "SPARK_SUBMIT_OPTS"  # Spark adds it to Java's options, and says nothing of it
PLAIN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
