"""``init``: the pipeline runs in a directory of its own, from an installed package as well."""

import json
import re
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
import yaml

from tests.support.command import status

ROOT = Path(__file__).parents[2]
SAME = (".dvc/config", *(path.relative_to(ROOT) for path in (ROOT / "stages").glob("*.yaml")))


def test_the_shipped_pipeline_is_that_of_the_repository_without_its_code():
    """After a change there: cp stages/*.yaml countdown_rl/assets/pipeline/stages/."""
    shipped_root = ROOT / "countdown_rl/assets/pipeline"
    for name in SAME:
        assert (shipped_root / name).read_text() == (ROOT / name).read_text()
    shipped, ours = (
        yaml.safe_load((path / "dvc.yaml").read_text()) for path in (shipped_root, ROOT)
    )
    for stage in ours["stages"].values():
        body = stage.get("do", stage)
        body["deps"] = [name for name in body["deps"] if not name.startswith("countdown_rl/")]
        if not body["deps"]:
            del body["deps"]
        for item in stage.get("foreach", {}).values():
            if "made" in item:
                item["made"] = re.sub("countdown_rl/.*", "artifacts/data", item["made"])
    assert shipped == ours


def test_a_file_that_exists_is_not_replaced(tmp_path, run_command):
    (tmp_path / "dvc.yaml").write_text("mine")
    assert "dvc.yaml" in run_command("init", str(tmp_path), code=1).err
    assert [path.name for path in tmp_path.iterdir()] == ["dvc.yaml"]


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
