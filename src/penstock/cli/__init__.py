"""The `penstock` command: thin commands that parse, call the package, and hand the result to an `Output`."""
