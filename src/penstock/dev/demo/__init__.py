"""`penstock demo`: a real job, killed again and again, whose outputs are then checked row by row.
`run` decides when to kill, kills, restarts and shows it; `result` reads the outputs and judges them."""
