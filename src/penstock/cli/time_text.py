"""Times as a person reads them."""

from __future__ import annotations


def span(milliseconds: int) -> str:
    """The two largest units: `3d 4h`, `12m 5s`, `7s`."""
    seconds = max(0, milliseconds) // 1000
    units = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    first = next((place for place, (count, _) in enumerate(units) if count), len(units) - 1)
    return " ".join(f"{count}{unit}" for count, unit in units[first : first + 2])
