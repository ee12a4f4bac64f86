"""Draws the house: every room of the package, by layer, and which room imports which; and counts what is in it.

    python scripts/draw_modules.py                 # the numbers
    python scripts/draw_modules.py --svg map.svg   # and the drawing
    python scripts/draw_modules.py --budget        # compare with the budget in pyproject.toml; fails above it

The order of the rooms is the one that `make lint` enforces: the contract in `pyproject.toml`. Imports are read from the
source, so those inside functions and those for types alone count like any other. `make docs` puts the drawing and the
numbers into `docs/architecture.md`; nothing drawn is committed, so the map cannot be older than the code.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "penstock"

ROW, CELL, NAME_WIDTH, PURPOSE_WIDTH, HEADER = 28, 24, 120, 300, 104
LETTER = 6.3  # the width of a letter of the purposes, generously


@dataclass(frozen=True)
class Import:
    """One module importing another, at one line."""

    importer: str
    imported: str
    line: int


@dataclass
class House:
    """The package as its source says it: modules, their imports, and the layers that a contract orders them by."""

    modules: dict[str, Path]
    layers: list[list[str]]  # of rooms, from the top to the ground
    imports: list[Import] = field(default_factory=list)

    @property
    def rooms(self) -> list[str]:
        return [room for layer in self.layers for room in layer]

    def modules_of(self, room: str) -> list[str]:
        inside = f"{PACKAGE}.{room}"
        return [module for module in self.modules if module == inside or module.startswith(f"{inside}.")]

    def lines_of(self, modules: Iterable[str]) -> int:
        return sum(count_lines(self.modules[module]) for module in modules)

    def room_imports(self) -> Counter[tuple[str, str]]:
        """How often each room imports each other room."""
        pairs = ((room_of(each.importer), room_of(each.imported)) for each in self.imports)
        return Counter((a, b) for a, b in pairs if a and b and a != b)

    def upward(self) -> list[Import]:
        """Imports that the order of layers forbids: to a layer above, or to another room of the same one."""
        rank = {room: number for number, layer in enumerate(self.layers) for room in layer}
        found = []
        for each in self.imports:
            a, b = room_of(each.importer), room_of(each.imported)
            if a and b and a != b and rank[b] <= rank[a]:
                found.append(each)
        return found


def room_of(module: str) -> str:
    """The first name below the package; nothing for the package itself."""
    return module.removeprefix(PACKAGE).lstrip(".").partition(".")[0]


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def read_contract(root: Path) -> dict[str, Any]:
    """The contract that orders the rooms."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers" and contract.get("containers") == [PACKAGE]:
            return dict(contract)
    raise LookupError(f"pyproject.toml has no contract for the layers of {PACKAGE}")


def read_layers(root: Path) -> list[list[str]]:
    """The contract's layers, from the top to the ground."""
    return [[room.strip() for room in layer.split("|")] for layer in read_contract(root)["layers"]]


def read_house(root: Path = ROOT) -> House:
    source = root / "src"
    modules = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    house = House(modules, read_layers(root))
    excepted = set(read_contract(root).get("ignore_imports", ()))
    for module, path in modules.items():
        imports = read_imports(module, path, modules)
        house.imports += [each for each in imports if f"{each.importer} -> {each.imported}" not in excepted]
    return house


def read_imports(module: str, path: Path, modules: dict[str, Path]) -> Iterator[Import]:
    """What a module imports of this package, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level + (path.name == "__init__.py") or None] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            names = [inside if (inside := f"{start}.{alias.name}") in modules else start for alias in node.names]
        else:
            continue
        for name in dict.fromkeys(names):
            if name in modules and name != module:
                yield Import(module, name, node.lineno)


def find_cycles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Groups of nodes that reach each other (Tarjan's way, without recursion)."""
    graph: dict[str, list[str]] = {}
    for a, b in edges:
        graph.setdefault(a, []).append(b)
        graph.setdefault(b, [])
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []
    for start in graph:
        if start in index:
            continue
        work = [(start, iter(graph[start]))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while work:
            node, following = work[-1]
            target = next(following, None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    cut = stack.index(node)
                    group, stack[cut:] = stack[cut:], []
                    if len(group) > 1:
                        cycles.append(sorted(group))
            elif target not in index:
                index[target] = low[target] = len(index)
                stack.append(target)
                work.append((target, iter(graph[target])))
            elif target in stack:
                low[node] = min(low[node], index[target])
    return cycles


def longest_function(house: House) -> tuple[int, str]:
    """Lines of the longest function and where it is, decorators not counted."""
    longest = (0, "")
    for module, path in house.modules.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                longest = max(longest, (lines, f"{module}.{node.name}"))
    return longest


def tell(house: House) -> list[tuple[str, str]]:
    """The numbers, each with its name."""
    longest_module = max((count_lines(path), module) for module, path in house.modules.items())
    function_lines, function = longest_function(house)
    rooms = find_cycles(house.room_imports())
    # The package itself imports all its public names, for type checkers alone.
    modules = find_cycles(
        (each.importer, each.imported)
        for each in house.imports
        if each.importer != PACKAGE and each.imported != PACKAGE
    )
    return [
        ("modules", str(len(house.modules))),
        ("lines", f"{house.lines_of(house.modules):,}"),
        ("longest module", f"{longest_module[1]}, {longest_module[0]} lines"),
        ("longest function", f"{function}, {function_lines} lines"),
        ("imports between rooms", str(sum(house.room_imports().values()))),
        ("imports upward", str(len(house.upward()))),
        ("cycles between rooms", "; ".join(", ".join(cycle) for cycle in rooms) or "none"),
        ("cycles between modules", "; ".join(", ".join(cycle) for cycle in modules) or "none"),
    ]


def read_budget(root: Path = ROOT) -> dict[str, int]:
    """The most modules and lines that the package may have."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return {name: int(most) for name, most in settings["tool"]["penstock"]["budget"].items()}


def over_budget(house: House, budget: dict[str, int]) -> tuple[str, bool]:
    """One line that compares the package with its budget, and whether it is over."""
    sizes = {"modules": len(house.modules), "lines": house.lines_of(house.modules)}
    line = ", ".join(f"{sizes[name]:,} of {most:,} {name}" for name, most in budget.items())
    return f"Budget of src: {line}", any(sizes[name] > most for name, most in budget.items())


def docstring_of(house: House, module: str) -> str:
    return ast.get_docstring(ast.parse(house.modules[module].read_text(encoding="utf-8"))) or ""


def first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".")


def purpose_of(house: House, room: str, letters: int) -> str:
    """The first sentence of the room's docstring, as far as it fits."""
    sentence = first_sentence(docstring_of(house, f"{PACKAGE}.{room}")).replace("`", "")
    if len(sentence) <= letters:
        return sentence
    return sentence[: letters - 1].rpartition(" ")[0].rstrip(" ,;:") + " …"


def list_rooms(house: House) -> str:
    """Markdown: a section for each room with its docstring, and its modules with the first sentence of theirs."""
    parts = []
    for room in house.rooms:
        inside = house.modules_of(room)
        parts.append(f"## {room}\n\n{docstring_of(house, f'{PACKAGE}.{room}')}")
        rows = []
        for module in inside:
            if name := module.removeprefix(f"{PACKAGE}.{room}").lstrip("."):
                sentence = first_sentence(docstring_of(house, module)).replace("|", "&#124;")
                rows.append(f"| `{name}` | {sentence} |")
        if rows:
            parts.append("\n".join(["| module | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def colour(name: str, light: str) -> str:
    """A colour that the page sets for its scheme, and what it is where no page does."""
    return f"var(--diagram-{name}, {light})"


def draw(house: House) -> str:
    """The rooms from the roof down, and to the right of each a dot under every room that it imports.

    Columns stand in the order of the rows, so all dots are right of the steps; an import upward would be left of them,
    in red.
    """
    rooms = house.rooms
    columns = {room: NAME_WIDTH + PURPOSE_WIDTH + number * CELL for number, room in enumerate(rooms)}
    width, height = NAME_WIDTH + PURPOSE_WIDTH + len(rooms) * CELL + 24, HEADER + len(rooms) * ROW + 8
    text, line = colour("text", "#1f2328"), colour("line", "#57606a")
    label = f"The rooms of {PACKAGE} from top to ground, and which imports which"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="100%" role="img">',
        f'<title>{label}</title><g font-size="13" fill="{text}">',
    ]
    for room, x in columns.items():
        at = f"{x + CELL / 2 + 4} {HEADER - 8}"
        parts.append(f'<text transform="translate({at}) rotate(-55)" fill="{line}">{room}</text>')
    rows: dict[str, float] = {}
    y = HEADER
    for number, layer in enumerate(house.layers):
        fill = colour("group", "#f6f8fa") if number % 2 == 0 else "none"
        parts.append(f'<rect x="0" y="{y}" width="{width}" height="{ROW * len(layer)}" fill="{fill}"/>')
        for room in layer:
            rows[room] = y
            inside = house.modules_of(room)
            size = f"{len(inside)} modules, " if len(inside) > 1 else ""
            purpose = purpose_of(house, room, int((columns[room] - NAME_WIDTH) / LETTER))
            parts.append(
                f'<text x="10" y="{y + 19}" font-weight="600">{room}</text>'
                f'<text x="{NAME_WIDTH}" y="{y + 19}" fill="{line}" font-size="12">{escape(purpose)}'
                f"<title>{room}: {size}{house.lines_of(inside)} lines</title></text>"
                f'<rect x="{columns[room] + 3}" y="{y + 5}" width="{CELL - 6}" height="{ROW - 10}" rx="4" '
                f'fill="{colour("box", "#eef2fb")}" stroke="{colour("border", "#4a63b8")}"/>'
            )
            y += ROW
    parts += draw_dots(house, columns, rows)
    return "\n".join([*parts, "</g></svg>"]) + "\n"


def draw_dots(house: House, columns: dict[str, int], rows: dict[str, float]) -> Iterator[str]:
    """One dot for each pair of rooms, larger for more imports."""
    rank = {room: number for number, layer in enumerate(house.layers) for room in layer}
    for (a, b), times in sorted(house.room_imports().items()):
        allowed = rank[b] > rank[a]
        fill = colour("border", "#4a63b8") if allowed else colour("wait-border", "#b3412e")
        radius = min(3 + times**0.5 * 0.9, CELL / 2 - 2)
        yield (
            f'<circle cx="{columns[b] + CELL / 2}" cy="{rows[a] + ROW / 2}" r="{radius:.1f}" fill="{fill}">'
            f"<title>{a} imports {b}: {times} times</title></circle>"
        )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Draw the rooms of the package and count what is in them.")
    parser.add_argument("--svg", type=Path, help="write the drawing into this file")
    parser.add_argument("--budget", action="store_true", help="compare modules and lines with the budget, and no more")
    options = parser.parse_args(arguments)
    house = read_house()
    if options.budget:
        line, over = over_budget(house, read_budget())
        sys.stdout.write(line + "\n")
        return 1 if over else 0
    if options.svg:
        options.svg.write_text(draw(house), encoding="utf-8")
    for name, value in tell(house):
        sys.stdout.write(f"{name:24} {value}\n")
    for each in house.upward():
        sys.stdout.write(f"upward: {each.importer} imports {each.imported}, line {each.line}\n")
    return 1 if house.upward() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
