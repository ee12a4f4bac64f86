"""Drills a user's own job: the same input once under real faults and once without, into outputs of its own."""
