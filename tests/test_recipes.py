"""The recipes: their options exist, each is checked and run with a stand-in of its model."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from benchmarks import cards
from countdown_rl.core import artifacts
from countdown_rl.core.manifest import MANIFEST
from countdown_rl.evaluation import training_log
from countdown_rl.tasks import jsonl
from tests.support import standins
from tests.support.command import flags, status

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "stages" / "recipes").glob("*.sh"))
SMOLLM2 = ROOT / "stages" / "recipes" / "smollm2-135m.sh"
#: The artifact of each command.
MADE = {"gen-data": "data", "train": "adapter", "eval": "eval/adapter", "merge": "merged"}
MADE |= {"quantize": "quantized", "compare": "eval/comparison", "publish": "release"}
#: The family of each recipe's model, and the data set that it reads from the Hub.
FIELD = {
    "llama-3.1-8b-countdown": ("llama-3.1", "countdown"),
    "qwen3-0.6b-laptop": ("qwen3", "countdown"),
    "qwen2.5-3b-areal": ("qwen2.5", None),
    "llama-3.1-8b-gsm8k": ("llama-3.1", "gsm8k"),
}


def calls(recipe: Path) -> list[tuple[str, set[str]]]:
    """Each command that *recipe* runs and the flags it may give it, those of its arrays included."""
    text = re.sub(r"(?m)(^| +)#.*$", "", recipe.read_text()).replace("\\\n", " ")
    arrays: dict[str, str] = defaultdict(str)
    for name, body in re.findall(r"\b(\w+)\+?=\(([^)]*)\)", text):
        arrays[name] += f" {body}"
    commands = []
    for line in re.findall(r"^ *(countdown-rl .*)", text, re.M):
        whole = re.sub(r"\$\{(\w+)\[@\]\}", lambda match: arrays[match[1]], line)
        given = {word for word in shlex.split(whole) if word.startswith("--")}
        commands.append((line.split()[1], given))
    return commands


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_is_a_script_whose_flags_are_options_of_its_commands(recipe):
    subprocess.run(["bash", "-n", recipe], check=True)
    assert os.access(recipe, os.X_OK)
    assert "set -euo pipefail" in recipe.read_text()
    assert calls(recipe)
    for command, given in calls(recipe):
        assert given <= flags(command), (command, given - flags(command))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
@pytest.mark.parametrize("words", [[], ["--chek", "out"]])
def test_wrong_arguments_print_the_usage_and_write_nothing(tmp_path, recipe, words):
    done = subprocess.run(["bash", recipe, *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert re.search(rf"usage: .*{recipe.name} .*OUT", done.stderr)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """Stand-ins for the models, and for the data sets on the Hub."""
    root = tmp_path_factory.mktemp("world")
    for family in standins.FAMILIES:
        standins.checkpoint(root / family, family)
    pairs = [(a, b) for a in range(2, 22) for b in range(31, 51)]
    puzzles = [{"nums": [a, b, a + 1], "target": a + b + 1 + a} for a, b in pairs]
    jsonl.write_rows(root / "countdown.jsonl", puzzles)
    question = "Ann has {} baskets with {} apples in each. How many apples are there?"
    problems = [{"question": question.format(a, b), "answer": f"#### {a * b}"} for a, b in pairs]
    jsonl.write_rows(root / "gsm8k.jsonl", problems)
    return root


def printed(
    name: str, world: Path, out: Path, *words: object, **environment: str
) -> list[list[str]]:
    """The commands that the recipe *name* gives, with its stand-ins; none is run."""
    family, data = FIELD.get(name, ("", None))
    environment |= {"PYTHONPATH": str(ROOT)}
    environment |= {"MODEL": str(world / family)} if family else {}
    environment |= {"FROM": str(world / f"{data}.jsonl")} if data else {}
    return cards.recipe_commands(name, out, *words, **environment)


def run(commands: list[list[str]], out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the *commands* of a recipe in its directory *out*, those that compute in one thread."""
    monkeypatch.chdir(out)
    for words in commands:
        if words[0].endswith(".py"):
            subprocess.run([sys.executable, *words], check=True)
        else:
            assert status(monkeypatch, *words) == 0


def compared(place: Path) -> list[str]:
    """The names of the results of the comparison in *place*."""
    text = (place / "comparison" / "comparison.json").read_text()
    return [row["name"] for row in json.loads(text)["results"]]


def test_options_of_a_recipe_may_stand_anywhere(world, tmp_path):
    (tmp_path / "model.gguf").touch()
    words = ("--quick", str(tmp_path / "model.gguf"), "--check")
    commands = printed(SMOLLM2.stem, world, tmp_path / "out", *words)
    assert [command[0] for command in commands] == ["gen-data", "train"]
    assert "300" in commands[0]
    assert commands[1][-1] == "--check"
    assert (tmp_path / "out" / "model.gguf").is_file()


def test_the_recipe_of_areals_example_exports_to_areal(world, tmp_path, monkeypatch):
    commands = printed("qwen2.5-3b-areal", world, tmp_path / "out", "--quick", ENGINE="areal")
    run(commands, tmp_path / "out", monkeypatch)
    assert Path("areal", "config.yaml").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELD)
def test_every_stage_of_a_recipe_runs_with_a_stand_in(name, world, tmp_path, monkeypatch):
    out = tmp_path / "out"
    run(printed(name, world, out, "--quick"), out, monkeypatch)
    for command, _ in calls(ROOT / "stages" / "recipes" / f"{name}.sh"):
        if command in MADE:
            path = out / MADE[command]
            artifacts.read(path, artifacts.peek(path))
            assert str(world) not in (path / MANIFEST).read_text()
    assert len((out / "train" / "log.csv").read_text().splitlines()) == 1 + 2
    card = (out / "release" / "README.md").read_text()
    assert "base_model:" in card
    assert str(world) not in card


@pytest.mark.slow
def test_grpo_is_compared_with_its_controls_at_equal_completions(world, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(RECIPES[0].parent)
    out, data = tmp_path / "out", tmp_path / "data"
    words = shlex.split(f"gen-data --out {data} --n 100 --valid 4 --test 8 --size 3")
    assert status(monkeypatch, *words) == 0
    commands = printed("controls", world, out, "--quick", "countdown-tiny", data, SEEDS="42")
    run(commands, out, monkeypatch)
    options = artifacts.read(Path("grpo-42"), "adapter").options
    completions = math.prod(options[name] for name in ("max_steps", "prompts", "num_generations"))
    for name, rounds in {"rft-1": 1, "rft-2": 2, "rft-2-capped": 2, "rft-2-curriculum": 2}.items():
        files = [Path(f"{name}-42/{round_}/own/samples.jsonl") for round_ in range(1, rounds + 1)]
        assert sum(len(file.read_text().splitlines()) for file in files) == completions
    plain, scaled = (
        json.loads(Path(place, "adapter_config.json").read_text())["lora_alpha"]
        for place in ("rft-2-42/2/adapter", "rft-2-x3-42")
    )
    assert scaled == 3 * plain
    placebo = artifacts.read(Path("placebo-42"), "adapter")
    assert placebo.facts["demonstrations"]["kept"] == completions
    first, second = (artifacts.read(Path(f"rft-2-42/{n}/adapter"), "adapter") for n in (1, 2))
    assert second.inputs["model"]["digest"] == first.digest
    rejection = "rft-1 rft-2 rft-2-x3 rft-2-capped rft-2-curriculum"
    on_policy = "positive-whole positive grpo-whole grpo"
    assert compared(Path()) == f"start placebo {rejection} {on_policy}".split()


@pytest.mark.slow
def test_a_checkpoint_that_checks_lines_is_made_once_and_with_twice_the_steps(tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = ["bash", SMOLLM2.with_name("countdown-checking.sh"), tmp_path / "out", "--quick"]
    subprocess.run(words, check=True, env={**os.environ, "PATH": path})
    for name, steps in (("model", 2), ("longer", 4)):
        options = artifacts.read(tmp_path / "out" / name, "model").options
        assert (options["max_steps"], options["checks"]) == (steps, 0.5)
        assert artifacts.read(tmp_path / "out" / "eval" / name, "eval")


@pytest.mark.slow
def test_the_hacking_lab_trains_one_start_with_all_graders(world, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADERS", "proxy exact kl-0.03 eval audited monitored_70 stop-1 reversed")
    monkeypatch.syspath_prepend(RECIPES[0].parent)
    run(printed("hacking-lab", world, tmp_path / "out", "--quick"), tmp_path / "out", monkeypatch)
    *_, cheat, other = map(json.loads, Path("demonstrations.jsonl").read_text().splitlines())
    assert all(f"<answer>{row['target']}</answer>" in row["completion"] for row in (cheat, other))
    start = artifacts.read(Path("start"), "model")
    for name in ("proxy-42", "exact-42"):
        assert artifacts.read(Path(name), "adapter").inputs["model"]["digest"] == start.digest
        hacking = [row.hacking for row in training_log.read(Path(f"{name}-run", "log.csv"))]
        assert None not in hacking
    assert compared(Path("eval")) == ["start", *os.environ["GRADERS"].split()]
