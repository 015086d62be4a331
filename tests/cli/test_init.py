"""``init``: the pipeline runs in a directory of its own, from an installed package as well."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import chdir
from pathlib import Path

import pytest
import yaml

from countdown_rl.cli import init
from tests.support.command import status

ROOT = Path(__file__).parents[2]


def record(site: Path, lines: str, monkeypatch) -> None:
    """Make *lines* the record of the installed files, and let the package be no clone."""
    information = site / "countdown_rl-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: countdown-rl\nVersion: 1.0\n"
    )
    (information / "RECORD").write_text(lines)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(init, "_CLONE", site)


def test_the_pipeline_is_that_of_the_repository_without_its_code(tmp_path, monkeypatch):
    assert status(monkeypatch, "init", str(tmp_path / "run")) == 0
    (tmp_path / "run" / "stages" / "train.yaml").unlink()  # as after an interruption
    assert status(monkeypatch, "init", str(tmp_path / "run")) == 0
    places = (tmp_path / "run", ROOT)
    ours, theirs = (yaml.safe_load((place / "dvc.yaml").read_text()) for place in places)
    for stage in theirs["stages"].values():
        body = stage.get("do", stage)
        body["deps"] = [name for name in body["deps"] if not name.startswith("countdown_rl/")]
        for item in stage.get("foreach", {}).values():
            if "made" in item:
                item["made"] = item["made"].replace(
                    "countdown_rl/assets/countdown_tiny", "artifacts/data"
                )
    assert ours == theirs
    comments = [re.findall(r"#.*", (place / "dvc.yaml").read_text()) for place in places]
    assert comments[0] == comments[1]
    for name in ("gen-data", "train", "eval", "merge", "quantize", "publish"):
        assert (tmp_path / "run" / f"stages/{name}.yaml").read_text() == (
            ROOT / f"stages/{name}.yaml"
        ).read_text()


def test_an_installed_package_has_the_same_files(tmp_path, monkeypatch):
    """Whatever the scheme: those of pip with --user or --prefix are recorded relative to the package."""
    data_files = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "data-files"
    ]
    for folder, patterns in data_files.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for path in (path for pattern in patterns for path in ROOT.glob(pattern)):
            shutil.copy(path, tmp_path / folder)
    record(tmp_path / "lib", "../share/countdown-rl/dvc.yaml,,\n", monkeypatch)
    assert status(monkeypatch, "init", str(tmp_path / "installed")) == 0
    monkeypatch.undo()
    assert status(monkeypatch, "init", str(tmp_path / "clone")) == 0
    names = {
        path.relative_to(tmp_path / "clone")
        for path in (tmp_path / "clone").rglob("*")
        if path.is_file()
    }
    assert len(names) >= 10
    for name in names:
        assert (tmp_path / "installed" / name).read_bytes() == (
            tmp_path / "clone" / name
        ).read_bytes()


def test_files_that_exist_and_an_installation_without_the_files_are_one_sentence(
    tmp_path, run_command, monkeypatch
):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "dvc.yaml").write_text("mine")
    assert "dvc.yaml" in run_command("init", str(tmp_path / "run"), code=1).err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["dvc.yaml"]
    record(tmp_path / "lib", "countdown_rl/__init__.py,,\n", monkeypatch)
    assert "install countdown-rl again" in run_command("init", str(tmp_path / "other"), code=1).err


@pytest.mark.slow
@pytest.mark.parametrize("git", [True, False])
def test_a_stage_runs_by_dvc_with_and_without_git(tmp_path, monkeypatch, git):
    pytest.importorskip("dvc")
    command = tmp_path / "bin" / "countdown-rl"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m countdown_rl "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if git:
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert status(monkeypatch, "init", str(tmp_path / "run")) == 0
    with chdir(tmp_path / "run"):
        options = Path("stages/gen-data.yaml")
        options.write_text(re.sub(r"(?m)^  n: \d+", "  n: 100", options.read_text()))
        subprocess.run(
            [sys.executable, "-m", "dvc", "repro", "-q", "gen-data"], check=True, timeout=120
        )
        assert json.loads(Path("artifacts/data/manifest.json").read_text())["options"]["n"] == 100
