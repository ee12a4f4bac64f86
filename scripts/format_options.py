"""The options of `format("penstock")` as the reference lists them; `python scripts/format_options.py
docs/reference/format.md` writes them there. A test compares the page with the sinks' own signatures."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.job.stream_sink import OWN, SINKS, arguments_of, is_mapping, sink_class

BEGIN = "<!-- made by python scripts/format_options.py -->"
END = "<!-- end of what is made -->"


def tables() -> str:
    """The format's own options, and a table for each sink, in Markdown."""
    own = [f"| `{_shown(name)}` | {meaning} |" for name, meaning in OWN.items()]
    parts = ["\n".join(["| option | meaning |", "|---|---|", *own])]
    for name, cls in SINKS.items():
        rows = [_row(option, kind) for option, kind in arguments_of(sink_class(name)).items()]
        head = f"### `{name}`\n\nThe arguments of `{cls}`:\n\n| option | type |\n|---|---|\n"
        parts.append(head + "\n".join(rows))
    return "\n\n".join(parts)


def insert_tables(page: str) -> str:
    """The page with the tables between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def _shown(name: str) -> str:
    return "checkpointLocation" if name == "checkpointlocation" else name


def _row(name: str, kind: str) -> str:
    if is_mapping(kind):
        return f"| `{name}.NAME` | one entry of `{name}` |"
    if "Sequence[" in kind or "tuple[" in kind:
        return f"| `{name}` | texts, between commas |"
    kind = kind.removesuffix(" | None").replace("|", "or")
    return f"| `{name}` | `{kind}` |"


def main(arguments: list[str]) -> None:
    """With a page's path: put the tables there. Without: print them."""
    for name in arguments:
        page = Path(name)
        page.write_text(insert_tables(page.read_text()))
    if not arguments:
        sys.stdout.write(f"{tables()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
