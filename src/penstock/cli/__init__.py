"""The `penstock` command: thin commands that parse, call the package, and hand the result to an `Output`.

`main` puts them together; nothing heavy is imported before a command runs. `run` and `supervised` start jobs, `jobs`
asks running ones, `top` watches them, `explain` describes a job without running it, `state` and `transactions` look
into what jobs left. `program` runs a job's file, `progress_display` shows how far long work is. May import everything.
"""
