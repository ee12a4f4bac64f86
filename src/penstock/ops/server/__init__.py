"""Jobs over HTTP: Flink's REST paths, Penstock's own, and the page.

A request passes `connections` (limits), `app` (dispatch) and `web` (host names, access, bodies, answers) and reaches a
handler in `flink`, `own` or `commands`, which reads a run of `runs`. `run_view` folds the job's events into one view.
`client.Client` is the other side, for the command line, and imports no Starlette.
"""
