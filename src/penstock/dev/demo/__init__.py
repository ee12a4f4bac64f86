"""`penstock demo`: a real job, killed again and again, whose outputs are then checked row by row.
`plan` decides when to kill, `result` reads the outputs and judges them, `run` kills, restarts and shows it."""
