"""The options as the reference lists them; `python scripts/settings_table.py docs/reference/settings.md` writes them
there. A test compares the page with the code."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.config.levels import ALL as OPTIONS
from penstock.config.option import Option

BEGIN = "<!-- made by python scripts/settings_table.py -->"
END = "<!-- end of what is made -->"

_HEAD = "| Flink's key | in Python | default | meaning here | shown by |\n|---|---|---|---|---|"


def table() -> str:
    """One row an option, in Markdown."""
    return "\n".join([_HEAD, *(_row(option) for option in OPTIONS)])


def insert_table(page: str) -> str:
    """The page with the table between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _row(option: Option) -> str:
    keys = f"`{option.key}`" + "".join(f"<br>also `{alias}`" for alias in option.aliases)
    tests = "<br>".join(f"`{test}`" for test in option.shown_by)
    default = f"`{option.default}`" if option.default else "none"
    return f"| {keys} | `{option.python}` | {default} | {option.meaning} | {tests} |"


def main(arguments: list[str]) -> None:
    """With a page's path: put the table there. Without: print it."""
    for name in arguments:
        page = Path(name)
        page.write_text(insert_table(page.read_text(encoding="utf-8")), encoding="utf-8")
    if not arguments:
        sys.stdout.write(table() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
