"""What can be asked of jobs by HTTP: Flink's REST paths, Penstock's own, and the page.

`serving.serving` is open while a job runs, `ui.serve_ui` shows all runs of this machine. `app.Application` gathers the
paths of `flink`, `steer`, `own` and `commands` in one table (`routes`) and serves them by the rules of `access`.
`collector` knows a run by its events, `history` keeps these on disk, `runs` is one interface over living and past runs;
`forward` sends a request on to a living one. `metrics` and `traces` make numbers and spans of the job's events, of the
times that `phases` puts together. `operations` does long work, `lifecycle` follows the job's state and says
in `Steerable` what is asked of a job. `client.Client` is the other side, for the command line, and imports no
Starlette. May import transactions, process, savepoints, config and lower.
"""
