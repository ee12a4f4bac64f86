"""`make mutants` still does what it says: a caught mutant counts, one that nobody catches must be explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import Explained, judge, load_survivors, load_targets
from tests.mutants.trial import PACKAGE, REPOSITORY, Mutant, Trial, TrialFailed, try_module

HERE = REPOSITORY / "tests" / "mutants"

MODULE = """
class Steps(list):
    @property
    def none(self):
        return not self

    def enter(self, newest, own):
        if newest != own:
            return
        self.append("entered")
"""
TESTS = """
from tiny.gate import Steps

def test_the_newest_enters_and_a_newer_one_keeps_it_out():
    steps = Steps()
    steps.enter(4, 3)
    assert steps.none
    steps.enter(3, 3)
    assert steps == ["entered"]
"""


def repository(folder: Path) -> Path:
    for name, text in (("src/tiny/gate.py", MODULE), ("src/tiny/__init__.py", ""), ("tests/test_gate.py", TESTS)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "pyproject.toml").write_text('[tool.pytest.ini_options]\nfilterwarnings = ["error"]\n')
    return folder


def test_mutants_are_made_tried_and_told(tmp_path: Path) -> None:
    trial = try_module("gate.py", ["tests/test_gate.py"], repository=repository(tmp_path), package="src/tiny")
    told = {(one.function, one.added): one.status for one in trial.mutants}
    assert {added for (_, added), status in told.items() if status == "survived"} == {"if newest > own:"}
    assert told["Steps.enter", "if newest < own:"] == "killed", "compared in one direction only"
    assert told["Steps.enter", "pass"] == "killed", "a step that is left out"
    assert told["Steps.none", "return self"] == "killed", "properties are mutated too"


def test_a_trial_that_could_not_begin_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("print('the tests fail without a mutant'); raise SystemExit(1)")
    monkeypatch.setattr("tests.mutants.trial._WORKER", worker)
    with pytest.raises(TrialFailed, match=r"gate\.py: mutmut ended with 1\nthe tests fail without a mutant"):
        try_module("gate.py", ["tests/test_gate.py"], repository=repository(tmp_path / "tiny"), package="src/tiny")


def mutant(status: str, added: str = "b", module: str = "m.py", function: str = "C.f") -> Mutant:
    return Mutant(module, function, "a", added, status)


def trial(*statuses: str) -> Trial:
    return Trial("m.py", tuple(mutant(status, added=f"b{n}") for n, status in enumerate(statuses)), 1.0)


def test_what_is_not_caught_and_not_explained_fails() -> None:
    verdict = judge([trial(*["killed"] * 19, "timeout", "survived")], [])
    assert (verdict.mutants, verdict.caught, round(verdict.percent)) == (21, 20, 95)
    assert [one.added for one in verdict.unexplained] == ["b20"]
    assert not verdict.good
    assert judge([trial(*["killed"] * 20, "survived")], [Explained("m.py", "it may", like="→ b20$")]).good


@pytest.mark.parametrize("status", ["survived", "no tests", "suspicious", "segfault", "not checked"])
def test_only_a_failing_test_or_an_endless_loop_is_a_catch(status: str) -> None:
    assert judge([trial(status)], []).caught == 0


def test_explanations_do_not_make_up_for_too_few_that_are_caught() -> None:
    assert not judge([trial(*["killed"] * 9, "survived")], [Explained("m.py", "it may", like="b9")]).good


def test_an_explanation_covers_what_it_names_and_nothing_else() -> None:
    exact = Explained("m.py", "it may", function="C.f", removed="a", added="b")
    assert exact.covers(mutant("survived"))
    for other in (mutant("survived", module="n.py"), mutant("survived", function="C.g"), mutant("survived", added="c")):
        assert not exact.covers(other)
    assert judge([trial("killed")], [exact]).needless == (exact,), "nobody needs it any more"
    assert judge([trial("killed")], [Explained("other.py", "not tried")]).needless == ()


def test_every_target_and_every_survivor_is_one_of_ours() -> None:
    targets = load_targets((HERE / "targets.toml").read_text())
    for module, tests in targets.items():
        assert (REPOSITORY / PACKAGE / module).is_file(), module
        assert tests
        for test in tests:
            assert (REPOSITORY / test).is_file(), test
    for one in load_survivors((HERE / "survivors.toml").read_text()):
        assert one.module == "*" or one.module in targets, one
        assert len(one.why) > 10, one
