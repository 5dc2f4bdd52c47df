import os

import pytest


def test_writes_one_file_and_replaces_it_when_told_to(run, filled, tmp_path):
    path = tmp_path / "out.html"
    result = run("report", filled, "-o", str(path))
    assert (result.exit_code, result.stdout) == (0, "")
    first = path.read_text(encoding="utf-8")
    assert all(f"<h1>{name}</h1>" in first for name in ("arrays", "empty", "talks"))
    again = run("report", filled, "-o", str(path))
    assert again.exit_code == 2
    assert "--overwrite replaces it" in again.stderr
    assert run("report", filled, "-o", str(path), "--overwrite", "-b", "talks").exit_code == 0
    assert "<h1>arrays</h1>" not in path.read_text(encoding="utf-8")
    assert [each.name for each in tmp_path.glob("*.html")] == ["out.html"]
    assert not list(tmp_path.glob(".out*"))


def test_standard_output_has_the_file_alone(run, filled):
    result = run("report", filled, "-o", "-", "-b", "talks")
    assert result.stdout.startswith("<!doctype html>")
    assert result.stdout.rstrip().endswith("</html>")


@pytest.mark.thorough
def test_what_cannot_be_written_or_read_is_told(run, filled, tmp_path):
    path = tmp_path / "out.html"
    missing = run("report", filled, "-o", str(path), "-b", "no")
    assert (missing.exit_code, "there is no buffer 'no'" in missing.stderr) == (3, True)
    assert run("report", filled, "-o", str(tmp_path / "no" / "out.html")).exit_code == 1
    assert run("report", f"sqlite:///{tmp_path}/none.db", "-o", str(path)).exit_code == 3
    assert run("report", filled, "-o", str(tmp_path), "--overwrite").exit_code == 1
    assert not [name for name in os.listdir(tmp_path) if "out" in name or name.startswith(".")]
