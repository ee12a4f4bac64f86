"""The `penstock` command: thin commands that parse, call the package, and hand the result to an `Output`.

`main` puts them together; nothing heavy is imported before a command runs. `run` parses and resolves a start, `program`
supervises and runs it. `jobs` commands running jobs, `top` watches them, `ui` shows them in a browser; `explain` reads
a job without running it; `transactions` ends what dead jobs left open. May import everything.
"""
