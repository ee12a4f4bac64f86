"""`penstock demo`: a real job, killed again and again, whose outputs are then checked row by row.

`run.run_demo` plays it. `job` is the job, `job_process` its processes, `plan` the moments of the kills, `files` and
`kafka` the two stages, `truth` what must come out, `result` the verdict, `view` what is shown. May import every room
but `cli`.
"""
