"""Real servers for development and tests, each on this machine only, in a folder of its own and on a free port.

The public names are `broker.Broker` (Apache Kafka; `security.make_security` for passwords), `postgres.Postgres`,
`mariadb.MariaDb`, `redis.RedisServer` and `s3.S3Server`: each is `base.Server` and what is its own. `hadoop.Hadoop` is
several of them. `service`, `spark_service` and `s3_service` are those that stay, of `penstock dev`. May import
`storage`, `spark` (Java and jars) and what lies below them.
"""
