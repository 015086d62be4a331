"""A random sample of generated hostile cases, each a command in a process and a directory of its own.

Artifacts of every stage are tampered with before each command that reads them, files without a manifest get flipped
bytes, and signals interrupt the stages. A case is refused with one sentence, or its result is the recorded one.
"""

import json
import os
import random
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from countdown_rl.cli import main
from countdown_rl.core import artifacts
from countdown_rl.core.artifacts import MANIFEST
from tests.support import constant_model

#: Seconds after which a command hangs, and cases of each kind.
LIMIT, COUNT = 60, 8

ASK = "ask 3 4 --target 7 --max-new-tokens 2 --model"
EVAL = "eval --data data --limit 1 --max-new-tokens 4 --out"
PUBLISH = "publish --license mit --name x --out out --model"
TRAIN = (
    "train --model base --data data --max-completion-length 16 --out out --log run/log.csv --checkpoints kept --check"
)
#: Commands that read each artifact.
READERS = {
    "data": (TRAIN, "eval --model random --data data --out out", "publish --data data --out out"),
    "adapter": (f"{ASK} adapter", f"{EVAL} out --model adapter", "merge --adapter adapter --verify none --out out"),
    "merged": (f"{EVAL} out --model merged", "quantize --model merged --format gguf --out out", f"{PUBLISH} merged"),
    "quantized": (f"{ASK} quantized", f"{EVAL} out --model quantized", f"{PUBLISH} quantized"),
    "gguf": (f"{ASK} gguf", f"{EVAL} out --model gguf", f"{PUBLISH} gguf"),
    "eval/merged": (
        "samples eval/merged",
        "report --result eval/merged --out page.html",
        "compare eval/merged eval/random --out out",
        "collect eval/merged --out out",
        f"{PUBLISH} merged",
    ),
    "release": (f"{ASK} release", "verify release --fresh 1 --limit 1 --seed 1"),
}
#: Names that a loader looks for, which no manifest here lists.
UNLISTED = {
    "data": ("test2.jsonl",),
    "adapter": ("added_tokens.json", "special_tokens_map.json", "config.json", "chat_template.json"),
    "merged": ("added_tokens.json", "model.safetensors.index.json", "adapter_config.json", "chat_template.json"),
    "quantized": ("model-00002-of-00002.safetensors", "vocab.json", "merges.txt"),
    "gguf": ("model-Q4_0.gguf", "config.json", "added_tokens.json"),
    "release": ("added_tokens.json", "model-00002-of-00002.safetensors", "special_tokens_map.json"),
}
#: Files without a manifest, and how many of their first bytes are flipped most often.
PLAIN = {
    "bare.gguf": 12_000,
    "base/tokenizer.json": 9_000,
    "base/tokenizer_config.json": 179,
    "base/chat_template.jinja": 151,
    "base/config.json": 717,
    "base/generation_config.json": 195,
    "base/model.safetensors": 4_000,
    "bare/adapter_config.json": 1_080,
    "bare/adapter_model.safetensors": 1_000,
}
STAGES = {
    "gen-data --n 300 --valid 4 --test 60 --workers 1 --out out": "data",
    "merge --adapter adapter --verify none --out out": "merged",
    "quantize --model merged --out out": "quantized",
    "eval --data data --limit 8 --max-new-tokens 4 --model merged --out out": "eval",
    "compare eval/random eval/merged --out out": "comparison",
    f"{PUBLISH} merged": "release",
}


class Done(NamedTuple):
    """The end of a command."""

    status: int
    printed: str
    seconds: float


class Case(NamedTuple):
    """One case; *check* returns what is wrong after *words* ended in the directory, or "".

    With *refuse* the command has to fail. *during* is called with the number of its process while it runs.
    """

    name: str
    words: str
    damage: Callable[[], object] = lambda: None
    refuse: bool = False
    check: Callable[[Done], str] = lambda done: ""
    during: Callable[[int], object] = lambda process: None


def in_child(work: Callable[[], object]) -> int:
    """The number of a child process that calls *work*; its status is 99 where it raises."""
    if process := os.fork():
        return process
    status = 99
    try:
        work()
        status = 0
    except SystemExit as stop:
        status = int(stop.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run(words: str, during: Callable[[int], object] = lambda process: None) -> Done:
    """Run ``countdown-rl`` with *words* in a child process."""
    with tempfile.TemporaryFile() as printed:

        def work() -> None:
            for stream in (1, 2):
                os.dup2(printed.fileno(), stream)
            sys.stdin, sys.stdout, sys.stderr = open(os.devnull), open(1, "w"), open(2, "w")  # noqa: SIM115
            sys.argv = ["countdown-rl", *shlex.split(words)]
            main.main()

        started = time.monotonic()
        process = in_child(work)
        during(process)
        while not (ended := os.waitpid(process, os.WNOHANG))[0]:
            if time.monotonic() - started > LIMIT:
                os.kill(process, signal.SIGKILL)
            time.sleep(0.002)
        printed.seek(0)
        text = printed.read().decode(errors="replace")
        return Done(os.waitstatus_to_exitcode(ended[1]), text, time.monotonic() - started)


def make() -> None:
    """Make artifacts of every stage, with evaluations; ``base``, ``bare`` and ``bare.gguf`` have no manifest."""
    constant_model.checkpoint(Path("base"))
    constant_model.chain(Path(), base="base")
    shutil.copytree("adapter", "bare", ignore=shutil.ignore_patterns(MANIFEST))
    shutil.copyfile("gguf/model-Q8_0.gguf", "bare.gguf")
    sys.argv = ["countdown-rl", *f"{PUBLISH} merged".replace("out out", "out release").split()]
    main.main()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The artifacts, made in another process: threads of torch in this one would hang its children."""
    before, root = os.getcwd(), tmp_path_factory.mktemp("generated")
    os.chdir(root)
    assert os.waitstatus_to_exitcode(os.waitpid(in_child(make), 0)[1]) == 0
    for name in ("base", "bare", "bare.gguf"):
        assert run(f"{EVAL} done-{name} --model {name}").status == 0
    yield root
    os.chdir(before)


def judge(case: Case, root: Path) -> str:
    """What is wrong with the end of *case*, run on a copy of *root*, or ""."""
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory, "here")
        shutil.copytree(root, here, copy_function=os.link)
        os.chdir(here)
        try:
            case.damage()
            done = run(case.words, case.during)
            fault = case.check(done)
        finally:
            os.chdir(root)
    sentences = re.findall("^(?:error: |conclusion +(?:refuted|too few))", done.printed, re.MULTILINE)
    if done.seconds > LIMIT:
        fault = "hangs"
    elif done.status == 99 or re.search("Traceback|this is a bug", done.printed):
        fault = "traceback"
    elif done.status == 1 and len(sentences) != 1:
        fault = "no sentence, or several"
    elif case.refuse and done.status not in (1, 2):
        fault = "not refused"
    return fault and f"{fault}: {case.name}\n{done.printed}"


def replace(name: str, data: bytes) -> None:
    """Write *data* to a new file in the place of *name*, which may be a link to a file of others."""
    path = Path(name)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def flip(data: bytes, chance: random.Random, count: int = 1) -> bytes:
    """*data* with *count* bits changed."""
    changed = bytearray(data)
    for _ in range(count):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def harm(name: str, how: str) -> None:
    """Change the file *name* in the way *how*."""
    path = Path(name)
    data = path.read_bytes()
    path.unlink()
    if how == "directory":
        path.mkdir()
    elif how == "link":
        path.symlink_to("/dev/zero")
    elif how != "remove":
        half = len(data) // 2
        changed = {"flip": flip(data, random.Random(0)), "cut": data[:-1], "append": data + b"\n", "empty": b""}
        replace(name, {**changed, "swap": data[half:] + data[:half]}[how])


def tampered(root: Path, chance: random.Random) -> Iterator[Case]:
    """A listed file, damaged, or one that the manifest does not list, before a command that reads the artifact."""
    for directory, readers in READERS.items():
        files = sorted(artifacts.read(root / directory, artifacts.MADE_BY).files)
        for how in ("flip", "cut", "append", "empty", "swap", "remove", "directory", "link"):
            name, words = f"{directory}/{chance.choice(files)}", chance.choice(readers)
            yield Case(f"{how} {name}: {words}", words, lambda name=name, how=how: harm(name, how), refuse=True)
        for file in UNLISTED.get(directory, ()):
            name, words = f"{directory}/{file}", chance.choice(readers)
            yield Case(f"unlisted {name}: {words}", words, lambda name=name: replace(name, b"{}"), refuse=True)


def flipped(root: Path, chance: random.Random) -> Iterator[Case]:
    """Flipped bytes in files without a manifest, whose evaluation is there already: it must not pass for theirs."""

    def check(done: Done) -> str:
        passes = not done.status and "is up to date" in done.printed
        return "the evaluation of other bytes" if passes else ""

    for file, limit in PLAIN.items():
        data, model = (root / file).read_bytes(), file.split("/")[0]
        limit = limit if chance.random() < 0.9 else len(data)
        changed = flip(data[:limit], chance, chance.choice([1, 1, 2, 8])) + data[limit:]
        words = chance.choice([f"{ASK} {model}", f"{EVAL} done-{model} --model {model}"])
        yield Case(f"{file}: {words}", words, lambda f=file, c=changed: replace(f, c), check=check)


def contents(kind: str) -> str:
    """The inputs and files of the artifact at ``out``."""
    manifest = artifacts.read(Path("out"), kind)
    return json.dumps([manifest.inputs, manifest.files], sort_keys=True)


def signals(root: Path, chance: random.Random) -> Iterator[Case]:
    """A signal at any moment: the artifact is whole or absent, and the same command then makes it."""
    for words, kind in STAGES.items():
        number, share, undisturbed = chance.choice([15, 2, 1, 9]), chance.random(), list[str | float]()

        def measure(words: str = words, kind: str = kind, undisturbed: list = undisturbed) -> None:
            done = run(words)
            undisturbed += [contents(kind), done.seconds]
            shutil.rmtree("out")

        def stop(process: int, share: float = share, number: int = number, undisturbed: list = undisturbed) -> None:
            time.sleep(share * undisturbed[1])
            os.kill(process, number)

        def check(done: Done, words=words, kind=kind, number: int = number, undisturbed: list = undisturbed) -> str:
            left = [path.name for path in Path().glob(".out*") if "progress" not in path.name]
            if left and number != signal.SIGKILL and done.status >= 0:
                return f"{left[0]} is left"
            if Path("out").exists() and contents(kind) != undisturbed[0]:
                return "another artifact"
            again = run(words)
            return "" if not again.status and contents(kind) == undisturbed[0] else f"then: {again.printed}"

        yield Case(f"signal {number} at {share:.2f}: {words}", words, measure, check=check, during=stop)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [tampered, flipped, signals])
def test_hostile_input_is_refused_or_means_the_same(kind, place):
    chance = random.Random(1)
    cases = list(kind(place, chance))
    faults = [judge(case, place) for case in chance.sample(cases, min(len(cases), COUNT))]
    assert not any(faults), "\n".join(filter(None, faults))
