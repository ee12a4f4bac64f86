"""Decimals as digits. Arrow writes small ones, and zeros with a long scale, in scientific notation; a database takes
that for a floating-point number, and its digits for an approximation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def digits_of(column: pa.Array) -> pa.Array:
    """A column of decimals as strings without exponent, digit by digit what they are; nulls stay null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = column.cast(pa.string())
    scientific = pc.fill_null(pc.match_substring(text, "E"), False)
    if not pc.any(scientific).as_py():
        return text
    # Only these one by one: format knows how, Arrow does not.
    plain = [format(value, "f") for value in column.filter(scientific).to_pylist()]
    return pc.replace_with_mask(text, scientific, pa.array(plain, pa.string()))
