"""Operations: what is attached to a run from outside. Nothing below imports it."""
