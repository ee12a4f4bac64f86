"""Where rows come from: `kafka`, `files`, `socket` (and its `journal`), `datagen`, any stream of Spark's (`streams`).

Each is a `penstock.contracts.source.Source`. `readers` holds the data sources that import PySpark, apart, so that
describing a job imports no Spark. May import spark, kafka, contracts, checkpoint, storage and lower.
"""
