"""Numbers and strangers' words as a terminal shows them."""

from __future__ import annotations

from penstock.logs import plain_text as plain_text


def duration_text(milliseconds: int) -> str:
    """The two largest units: `3d 4h`, `12m 5s`, `7s`."""
    seconds = max(0, milliseconds) // 1000
    units = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    first = next((place for place, (count, _) in enumerate(units) if count), len(units) - 1)
    return " ".join(f"{count}{unit}" for count, unit in units[first : first + 2])


def short_duration_text(milliseconds: float) -> str:
    """`48 ms`, `1.2 s`, and from a minute on as `duration_text`."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 60_000 else duration_text(int(milliseconds))


def size_text(size: int) -> str:
    """`512 B`, `3.1 MB`: in thousands, as disks are sold."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def number_text(number: float) -> str:
    """`12,345`; a small one with a digit behind the point."""
    return f"{number:.1f}" if 0 < number < 10 and number != int(number) else f"{number:,.0f}"
