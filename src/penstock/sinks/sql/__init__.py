"""What the SQL sinks share, whatever the driver: names, modes, marker tables, columns, errors. Nothing here connects.

`modes` says how an epoch becomes visible, `names` what is left in the database and how it is found again, `markers`
how a commit is proven, `columns` and `frames` what a table takes, `faults` what a person is told.
"""
