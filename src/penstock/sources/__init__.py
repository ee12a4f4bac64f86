"""Where rows come from: `kafka`, `files`, `socket`, `datagen`, and any stream of Spark's (`frame`).

Each is a `penstock.contracts.source.Source`. What imports PySpark is in a module apart, so that describing a job
imports no Spark. `spark_reader` is how sources reach Spark. May import spark, kafka, epoch, contracts, storage and
lower.
"""
