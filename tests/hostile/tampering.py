"""Generated cases: artifacts tampered with before each later stage, and files without a manifest with flipped bytes."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from countdown_rl.core import artifacts
from countdown_rl.core.artifacts import MANIFEST
from tests.hostile.harness import ASK, EVAL, Case, Done, replace

_RUN = "--out out --log run/log.csv --checkpoints kept --check"
_PUBLISH = "publish --license mit --name x --out out --model"
#: Commands that read each artifact.
READERS = {
    "data": (
        f"train --model base --data data --max-completion-length 16 {_RUN}",
        "eval --model random --data data --out out",
        "publish --data data --out out",
    ),
    "adapter": (
        f"{ASK} adapter",
        f"{EVAL} out --model adapter",
        "merge --adapter adapter --verify none --out out",
        f"{_PUBLISH} adapter --base-model me/base",
    ),
    "merged": (
        f"{ASK} merged",
        f"{EVAL} out --model merged",
        "quantize --model merged --out out",
        "quantize --model merged --format gguf --out out",
        f"{_PUBLISH} merged",
    ),
    "quantized": (f"{ASK} quantized", f"{EVAL} out --model quantized", f"{_PUBLISH} quantized"),
    "gguf": (f"{ASK} gguf", f"{EVAL} out --model gguf", f"{_PUBLISH} gguf"),
    "eval/merged": (
        "samples eval/merged",
        "report --result eval/merged --out page.html",
        "compare eval/merged eval/random --out out",
        "diagnose eval/merged",
        "collect eval/merged --out out",
        f"{_PUBLISH} merged",
    ),
    "eval/comparison": (f"{_PUBLISH} merged --comparison eval/comparison",),
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


def _flip(data: bytes, chance: random.Random, count: int = 1) -> bytes:
    changed = bytearray(data)
    for _ in range(count):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _harm(name: str, how: str, seed: int) -> None:
    """Change the file *name* in the way *how*."""
    path, chance = Path(name), random.Random(seed)
    data = path.read_bytes()
    path.unlink()
    if how == "directory":
        path.mkdir()
    elif how == "link":
        path.symlink_to("/dev/zero")
    elif how == "swap":  # with the same bytes in another order
        replace(name, data[len(data) // 2 :] + data[: len(data) // 2])
    elif how != "remove":
        changed = {"flip": lambda: _flip(data, chance), "cut": lambda: data[:-1], "append": lambda: data + b"\n"}
        replace(name, changed[how]() if how in changed else b"")


HOWS = ("flip", "cut", "append", "empty", "swap", "remove", "directory", "link")


def tampered(root: Path, seed: int) -> Iterator[Case]:
    """Every listed file, damaged in every way, before every command that reads it."""
    for directory, readers in READERS.items():
        for file in sorted(artifacts.read(root / directory, artifacts.MADE_BY).files):
            for how in HOWS:
                for words in readers:
                    name = f"{directory}/{file}"
                    yield Case(
                        "artifacts",
                        f"{how} {name}: {words}",
                        words,
                        lambda name=name, how=how: _harm(name, how, seed),
                        refuse=True,
                    )


def unlisted() -> Iterator[Case]:
    """A file that the manifest does not list, which a loader may read."""
    for directory, names in UNLISTED.items():
        for name in names:
            for words in READERS[directory]:
                file = f"{directory}/{name}"
                yield Case("unlisted", f"{file}: {words}", words, lambda file=file: replace(file, b"{}"), refuse=True)


def manifests(root: Path, seed: int, count: int) -> Iterator[Case]:
    """Flipped bytes in a manifest: refused where it is no longer one, or no longer that of its inputs."""
    chance = random.Random(seed)
    for _ in range(count):
        directory = chance.choice([*READERS])
        file = f"{directory}/{MANIFEST}"
        data = _flip((root / file).read_bytes(), chance, chance.choice([1, 1, 4]))
        words = chance.choice(READERS[directory])
        refuse = _is_damaged(data)
        yield Case("manifests", f"{file}: {words}", words, lambda f=file, d=data: replace(f, d), refuse=refuse)


def _is_damaged(data: bytes) -> bool:
    try:
        return any(artifacts.altered(entry) for entry in json.loads(data).get("inputs", {}).values())
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return True


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
    "bare/tokenizer.json": 8_000,
    "bare/adapter_model.safetensors": 1_000,
}


def flipped(root: Path, seed: int, count: int) -> Iterator[Case]:
    """Flipped bytes in files without a manifest, whose evaluation is there already: it must not pass for theirs."""
    chance = random.Random(seed)
    names = [*PLAIN]
    for number in range(count):
        file = names[number % len(names)] if number % 3 else "bare.gguf"
        data = (root / file).read_bytes()
        limit = PLAIN[file] if chance.random() < 0.9 else len(data)
        changed = _flip(data[:limit], chance, chance.choice([1, 1, 2, 8])) + data[limit:]
        model = file.split("/")[0]
        choices = [f"{ASK} {model}", f"{EVAL} done-{model} --model {model}"]
        choices += [f"{ASK} {model} --engine transformers"] if model == "bare.gguf" else []
        choices += ["quantize --model base --out out"] if model == "base" else []
        choices += ["merge --adapter bare --out out"] if model == "bare" else []
        words = chance.choice(choices)
        damage = lambda file=file, changed=changed: replace(file, changed)  # noqa: E731
        yield Case("flipped", f"{number} {file}: {words}", words, damage, check=_taken_for_the_old_one)


def _taken_for_the_old_one(done: Done) -> str:
    return "the evaluation of other bytes" if not done.status and "made by the same options" in done.printed else ""
