"""DVC as its users use it: stages, metrics, plots and the lock, on the first stages of the real dvc.yaml.

A script takes the place of ``countdown-rl``: it writes the files of each stage, and as accuracy the learning rate.
"""

import json
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow

#: The learning rate of the pipeline, and another.
RATE = yaml.safe_load((ROOT / "stages/train.yaml").read_text())["train"]["learning-rate"]
OTHER = RATE / 4

STAND_IN = """#!/bin/sh
stage=$1
while [ $# -gt 0 ]; do
  case $1 in --out) out=$2;; --model) model=$2;; --log) log=$2;; --learning-rate) rate=$2;; esac
  shift
done
mkdir -p $(dirname $out)
case $stage in
  gen-data) mkdir $out; echo puzzle > $out/test.jsonl;;
  train)
    mkdir -p $out artifacts/train
    echo $rate > $out/rate
    echo sample > artifacts/train/samples.jsonl
    echo step,reward,correct,correct_numbers_3,correct_numbers_4,correct_needs_add-sub,\
correct_needs_mul-div,mean_length,entropy,frac_reward_zero_std,truncated > $log
    echo 1,$rate,0,0,0,0,0,0,0,0,0 >> $log;;
  eval)
    mkdir -p $out
    rate=$(cat $model/rate 2>/dev/null || echo 0)
    echo '{"n": 1000, "accuracy": '$rate'}' > $out/metrics.json
    for name in details.json manifest.json samples.jsonl; do echo '{"of": "'$out $rate'"}' > $out/$name; done;;
esac
"""


def git(words: str) -> None:
    subprocess.run(["git", *words.split()], check=True, capture_output=True)


def dvc(words: str) -> str:
    """Run ``dvc`` and return its stdout."""
    settings = {"check": True, "stdout": subprocess.PIPE, "text": True, "timeout": 120}
    return subprocess.run([sys.executable, "-m", "dvc", *words.split()], **settings).stdout


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A directory for everything that Git and DVC write, with the stand-in on the path."""
    root = tmp_path_factory.mktemp("dvc")
    (root / "bin").mkdir()
    (root / "bin" / "countdown-rl").write_text(STAND_IN)
    (root / "bin" / "countdown-rl").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(root / "bin"), prepend=":")
        patch.setenv("DVC_GLOBAL_CONFIG_DIR", str(root / "config"))
        patch.setenv("DVC_SITE_CACHE_DIR", str(root / "site"))
        for role in ("AUTHOR", "COMMITTER"):
            patch.setenv(f"GIT_{role}_NAME", "me")
            patch.setenv(f"GIT_{role}_EMAIL", "me@example.org")
        yield root


@pytest.fixture(scope="module")
def pipeline(root):
    """A repository with the stages up to eval, run and committed."""
    project = root / "project"
    shutil.copytree(ROOT / "stages", project / "stages")
    for name in (".dvcignore", ".gitignore", ".dvc/config", ".dvc/.gitignore"):
        (project / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, project / name)
    pipeline = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    stages = {name: pipeline["stages"][name] for name in ("gen-data", "train", "eval")}
    for name in stages["eval"]["foreach"].keys() - {"base", "adapter", "adapter-sampled"}:
        del stages["eval"]["foreach"][name]
    (project / "dvc.yaml").write_text(
        yaml.safe_dump(pipeline | {"stages": stages}, sort_keys=False)
    )
    for stage in stages.values():
        for dep in stage.get("do", stage)["deps"]:
            if dep.startswith("countdown_rl/"):
                path = project / dep if Path(dep).suffix else project / dep / "module.py"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
    with chdir(project):
        git("init -b main")
        dvc("repro --quiet")
        git("add --all")
        git("commit -m first")
    return project


@pytest.fixture
def project(pipeline, tmp_path, monkeypatch):
    """A copy of the repository, as the working directory."""
    shutil.copytree(pipeline, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_metrics_and_plots_of_two_runs_are_compared(project):
    Path("artifacts/eval/adapter/metrics.json").write_text('{"n": 1000, "accuracy": 0.5}')
    Path("artifacts/eval/base/metrics.json").write_text('{"n": 1000, "accuracy": 0.4}')
    adapter, base = (f"artifacts/eval/{name}/metrics.json" for name in ("adapter", "base"))
    change = {"accuracy": {"old": RATE, "new": 0.5, "diff": pytest.approx(0.5 - RATE)}}
    assert json.loads(dvc("metrics diff --json")) == {adapter: change}
    both = json.loads(dvc(f"metrics diff --json --targets {adapter} {base}"))
    assert set(both) == {adapter, base}
    plots = json.loads(dvc("plots diff --json"))["data"]
    assert list(plots) == ["learning", "numbers", "operators", "length", "entropy", "signal"]
    for (plot,) in plots.values():
        assert plot["revisions"] == ["workspace", "HEAD"]
        assert 0 < len(plot["content"]["title"]["text"]) < 40


def test_make_repro_ends_with_the_outcome_and_without_hints_of_dvc(project):
    results = [{"name": "base", "accuracy": 0.748, "n": 1000}]
    results += [{"name": "adapter", "accuracy": 0.855, "n": 1000}]
    Path("artifacts/eval/comparison").mkdir()
    Path("artifacts/eval/comparison/comparison.json").write_text(json.dumps({"results": results}))
    Path("stages/train.yaml").write_text(f"train:\n  learning-rate: {OTHER}\n  temperature: 1.0\n")
    run = [sys.executable, ROOT / ".ci" / "pipeline.py"]
    printed = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert "Running stage 'train'" in printed
    assert "74.8% → 85.5% of 1,000" in printed.splitlines()[-1]
    assert "dvc push" not in printed
    assert "git add" not in printed


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("countdown_rl/tasks/module.py", "x = 1\n"),
        ("stages/train.yaml", "train:\n  learning-rate: 1.0\n  temperature: 1.0\n"),
        ("artifacts/train/log.csv", "step,reward\n"),
        ("", ""),
    ],
)
def test_a_lock_of_other_code_options_or_results_is_found(project, file, text):
    if file:
        Path(file).write_text(text)
    for path in (".dvc/cache", "artifacts/data", "artifacts/adapter"):  # as in a clone
        shutil.rmtree(path)
    check = [sys.executable, ROOT / ".ci/check_lock.py"]
    message = subprocess.run(check, capture_output=True, text=True).stderr
    assert "train: " in message if file else message == ""
