"""A folder of definitions: read again when it changes, and one broken file breaks nothing else."""

from __future__ import annotations

from pathlib import Path

from evoclaw.workflows.catalogue import Catalogue, WorkflowEntry
from evoclaw.workflows.definition import ToolStep, Workflow

GOOD = '[[steps]]\nname = "a"\nkind = "tool"\ntool = "t"\n'


def sub(name: str) -> str:
    return f'[[steps]]\nname = "a"\nkind = "workflow"\nworkflow = "{name}"\n'


def problems(found: Catalogue) -> dict[str, str]:
    return {one.name: one.problem for one in found.all()}


def test_added_changed_and_deleted_files_are_picked_up(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path)
    assert catalogue.all() == []
    file = tmp_path / "one.toml"
    file.write_text(GOOD)
    assert catalogue.names() == ["one"]
    file.write_text(GOOD.replace('"tool"', '"tol"'))
    assert "one.toml, line 3: unknown kind 'tol'" in problems(catalogue)["one"]
    assert catalogue.get("one") is None
    file.write_text(GOOD + 'on_error = "continue"\n')
    assert catalogue.names() == ["one"]
    file.unlink()
    assert catalogue.all() == []


def test_a_file_that_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(GOOD)
    catalogue = Catalogue(tmp_path)

    assert catalogue.get("one") is catalogue.get("one")


def test_a_broken_file_is_reported_and_the_others_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    (tmp_path / "good.toml").write_text(GOOD)
    (tmp_path / "huge.toml").write_text("#" * 300_000)
    (tmp_path / "folder.toml").mkdir()
    catalogue = Catalogue(tmp_path)

    assert catalogue.names() == ["good"]
    found = problems(catalogue)
    assert "not UTF-8" in found["bad"] and "256 KB" in found["huge"]
    assert "cannot read" in found["folder"]


def test_a_missing_folder_has_no_workflows(tmp_path: Path) -> None:
    assert Catalogue(tmp_path / "none").all() == []


def test_a_duplicate_workflow_name_is_refused(tmp_path: Path) -> None:
    own = Workflow("one", (ToolStep("a", tool="t"),))
    (tmp_path / "one.toml").write_text(GOOD)
    found = Catalogue(tmp_path, [own]).all()

    assert found[0] == WorkflowEntry("one", workflow=own)
    assert found[1].workflow is None and "the code defines 'one' already" in found[1].problem


def test_cyclic_workflows_are_refused(tmp_path: Path) -> None:
    for name, next_ in (("a", "b"), ("b", "c"), ("c", "a"), ("above", "a")):
        (tmp_path / f"{name}.toml").write_text(sub(next_))
    (tmp_path / "fine.toml").write_text(GOOD)
    catalogue = Catalogue(tmp_path)

    assert catalogue.names() == ["fine"]
    assert problems(catalogue)["a"].endswith("contains itself: a > b > c > a")
    assert "unknown workflow 'a'" in problems(catalogue)["above"]


def test_nested_workflows_have_a_depth_limit(tmp_path: Path) -> None:
    (tmp_path / "w0.toml").write_text(GOOD)
    for number in range(1, 6):
        (tmp_path / f"w{number}.toml").write_text(sub(f"w{number - 1}"))
    catalogue = Catalogue(tmp_path)

    assert catalogue.names() == ["w0", "w1", "w2", "w3", "w4"]
    assert "more than 5 deep" in problems(catalogue)["w5"]


def test_an_unknown_workflow_in_a_step_is_reported_with_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "cleanup.toml").write_text(GOOD)
    (tmp_path / "nightly.toml").write_text(sub("clean-up"))

    assert "did you mean 'cleanup'" in problems(Catalogue(tmp_path))["nightly"]
