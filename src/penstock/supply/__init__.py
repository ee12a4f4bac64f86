"""What a session is made of: a version of Spark, Java, jars, and the environment of executors. Knows no session."""
