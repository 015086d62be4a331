"""Generated cases: names in cards, missing packages, a hostile Hub, signals, and two stages at once."""

import importlib.machinery
import json
import os
import random
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from tests.hostile.harness import ASK, EVAL, Case, Done, run
from tests.hostile.tampering import READERS
from tests.support.hub import Blob, Hub

# Names in cards

NAMES = (
    "x\nlicense: mit", "x\n---\n# other", "---", "x: y", "[x]", "{x: y}", "&x", "*x", "!!python/object:os.system x",
    "'", '"', "\"x\nb: c",
    "#x", "x #y", "- x", "? x", "| x", "> x", "%x", "@x", "`x`", "null", "~", "yes", "1e3", "0x1",
    "2020-01-01", "<script>x</script>", "</details><h1>x", "](http://x)[", "x\ty", "x\x00y", "x\x1b[31m", "\u202ex",
    "x\u2028y", "x\x85y", "x\r\ny: z", "{{ 7*7 }}", "{% raw %}", "<!-- x -->", "é", "\ufeffx", " x ", "x" * 5_000,
)  # fmt: skip
#: Commands that write a name into a card, the name being appended, and the field of the metadata that has it.
FIELDS = (
    ("publish --model merged --license mit --out out --name", "model_name"),
    ("publish --model merged --name x --out out --license", "license"),
    ("publish --model merged --license mit --name x --out out --trained-on", "datasets"),
    ("publish --model merged --license mit --name x --out out --base-model", "base_model"),
    ("publish --data data --out out --name", "pretty_name"),
    ("publish --data data --out out --license", "license"),
)
_PLAIN = "plain/name"


def cards() -> Iterator[Case]:
    """Every name in every field of a card: its metadata hold that name, and no other field changes."""
    for command, field in FIELDS:
        for name in NAMES:
            words = f"{command} {shlex.quote(name)}"
            if "\0" not in name:  # which no argument has
                yield Case(
                    "cards", f"{field} {name!r:.40}: {command}", words, _nothing, check=_same_card(command, field, name)
                )


def _same_card(command: str, field: str, name: str) -> Callable[[Done], str]:
    def check(done: Done) -> str:
        if done.status:
            return ""
        card, (head, lines) = Path("out/README.md").read_text("utf-8"), _plain(command, field)
        _, metadata, body = card.split("---\n", 2)
        import yaml

        values = yaml.safe_load(metadata)
        expected = [name] if field == "datasets" else name
        for holder in [values, *(values.get("model-index") or [])]:
            if holder.get("name") == name:
                holder["name"] = _PLAIN
        if values.get(field, values.get("model-index", [{}])[0].get("name")) not in (expected, _PLAIN):
            return f"{field} is {values.get(field)!r}, not {name!r}"
        others = {key: value for key, value in values.items() if key != field}
        if others != {key: value for key, value in head.items() if key != field}:
            return "other fields of the metadata changed"
        return "" if len(body.split("\n")) == lines else f"the page has not {lines} lines"

    return check


_cards: dict[str, tuple[dict[str, Any], int]] = {}


def _plain(command: str, field: str) -> tuple[dict[str, Any], int]:
    """The metadata of the card of an ordinary name, and the lines of its text."""
    import yaml

    if command not in _cards:
        done = run(f"{command} {_PLAIN}".replace("--out out", "--out plain"))
        if done.status:
            raise RuntimeError(done.printed)
        _, metadata, body = Path("plain/README.md").read_text("utf-8").split("---\n", 2)
        _cards[command] = (yaml.safe_load(metadata), len(body.split("\n")))
    return _cards[command]


def _nothing() -> None:
    pass


# Missing packages

PACKAGES = (
    "compressed_tensors", "xllamacpp", "libggml", "openai", "inspect_ai", "lm_eval", "verifiers",
    "vllm", "deepspeed", "wandb", "tensorboard", "trackio", "dvc", "kernels",
)  # fmt: skip
_TRAIN = (
    "train --model base --data data --max-completion-length 16 --out out --log run/log.csv --checkpoints kept --check"
)
USES = (
    "quantize --model merged --format w4a16 --out out",
    "quantize --model merged --format gguf --gguf-type q4_k_m --out out",
    "quantize --model merged --format gguf --out out",
    f"{EVAL} out --model gguf",
    f"{EVAL} out --model merged --engine vllm",
    f"{EVAL} out --model m --engine openai --base-url http://127.0.0.1:9/v1",
    f"{ASK} m --engine openai --base-url http://127.0.0.1:9/v1",
    f"{_TRAIN} --rollouts vllm",
    f"{_TRAIN} --launch zero2 --processes 2",
    *(f"{_TRAIN} --report-to {name}" for name in ("wandb", "tensorboard", "trackio")),
    *(f"export-task {name} --data data --out out" for name in ("lm-eval", "verifiers")),
)


def packages() -> Iterator[Case]:
    """Each optional package missing, alone and with all others, in each command that may use it."""
    for words in USES:
        for missing in (*((name,) for name in PACKAGES), PACKAGES):
            yield Case("packages", f"without {' '.join(missing)}: {words}", words, _nothing, before=_hide(missing))


def _hide(names: tuple[str, ...]) -> Callable[[], None]:
    def hide() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] in names]:
            del sys.modules[name]
        find = importlib.machinery.PathFinder.find_spec

        def find_spec(name: str, *rest: Any) -> Any:
            return None if name.split(".")[0] in names else find(name, *rest)

        importlib.machinery.PathFinder.find_spec = find_spec  # type: ignore[method-assign, assignment]

    return hide


# A hostile Hub

REQUESTS = ("GET /api/", "GET /api/.*refs", "GET /api/.*tree", "HEAD .*resolve", "GET .*resolve", "/.store", ".*")
FAULTS: tuple[dict[str, Any], ...] = (
    *({"status": status} for status in (200, 204, 206, 400, 401, 403, 404, 416, 418, 429, 500, 503)),
    {"status": 429, "headers": {"Retry-After": "1000000000"}},
    *({"cut": cut} for cut in ("before", "after", "body")),
    *({"status": 302, "headers": {"Location": place}} for place in ("/", "//x.invalid/", "file:///etc/passwd", "\x80")),
    *({"status": 200, "headers": {"X-Repo-Commit": commit, "ETag": '"x"'}} for commit in ("../../evil", "/evil", "")),
    {"status": 200, "headers": {"ETag": '"../../evil"', "X-Repo-Commit": "a" * 40}},
    {"status": 200, "headers": {"X-Linked-Size": "-1"}},
    {"status": 200, "headers": {"X-Linked-Size": "99999999999999"}},
)
PATHS = (
    "../evil",
    "../../evil.json",
    "/evil.json",
    "a/../../../evil.json",
    "..\\evil.json",
    "C:\\evil.json",
    "evil\n.json",
)
MODELS = {f"{ASK} me/base": "base", f"{ASK} me/adapter": "bare", f"{EVAL} out --model me/base": "base"}
MODELS["verify me/release --fresh 1 --limit 1 --seed 1"] = "release"


def hub_cases(hub: Hub, seed: int, count: int) -> Iterator[Case]:
    """Downloads from a Hub with faults, files of other bytes than announced, and paths that lead elsewhere."""
    chance = random.Random(seed)
    for words, folder in MODELS.items():
        for number, request in enumerate(REQUESTS):
            for fault in chance.sample(FAULTS, count):
                times = chance.choice([1, 99])
                set_up = _with_fault(hub, folder, request, fault, times)
                yield Case(
                    "hub",
                    f"{request} {number} {fault} {times}: {words}",
                    words,
                    set_up,
                    check=_nothing_outside,
                    before=use(hub),
                )
        for path in PATHS:
            yield Case(
                "hub",
                f"{path!r}: {words}",
                words,
                _with_path(hub, folder, path),
                check=_nothing_outside,
                before=use(hub),
            )
    for file in (
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "README.md",
        "manifest.json",
        "eval/samples.jsonl",
    ):
        for how in ("shorter", "longer", "other", "empty"):
            for words, folder in MODELS.items():
                set_up = _with_content(hub, folder, file, how)
                refuse = folder == "release" and how != "same"
                yield Case(
                    "hub",
                    f"{file} {how}: {words}",
                    words,
                    set_up,
                    check=_nothing_outside,
                    refuse=refuse,
                    before=use(hub),
                )


def _publish(hub: Hub, folder: str) -> Any:
    hub.faults.clear()
    hub.repos.clear()
    config = Path("bare/adapter_config.json")
    text = config.read_text()
    config.unlink()
    config.write_text(json.dumps(json.loads(text) | {"base_model_name_or_path": "me/base", "revision": None}))
    for name, source in (("base", "base"), ("adapter", "bare"), ("release", "release")):
        hub.add_model(f"me/{name}", Path(source))
    return hub.model({"bare": "me/adapter"}.get(folder, f"me/{folder}"))


def _with_fault(hub: Hub, folder: str, request: str, fault: dict[str, Any], times: int) -> Callable[[], None]:
    def set_up() -> None:
        _publish(hub, folder)
        hub.fail(request, times=times, **fault)

    return set_up


def _with_path(hub: Hub, folder: str, path: str) -> Callable[[], None]:
    def set_up() -> None:
        repo = _publish(hub, folder)
        repo.commit(repo.trees[repo.branches["main"]] | {path: Blob(b"{}", False)})

    return set_up


def _with_content(hub: Hub, folder: str, file: str, how: str) -> Callable[[], None]:
    def set_up() -> None:
        repo = _publish(hub, folder)
        tree = repo.trees[repo.branches["main"]]
        name = file if file in tree else "tokenizer.json"
        data = tree[name].data
        changed = {"shorter": data[:-9], "longer": data + b"\n\n", "other": data[9:] + data[:9], "empty": b""}[how]
        announced = type("Announced", (Blob,), {"oid": tree[name].oid})
        tree[name] = announced(changed, tree[name].lfs)

    return set_up


def _nothing_outside(done: Done) -> str:
    here = Path().absolute()
    outside = [path for path in (*here.parent.rglob("*evil*"), Path("/evil"), Path("/evil.json")) if path.exists()]
    outside = [path for path in outside if "cache" not in path.parts or ".." in path.parts]
    return f"{outside[0]} was written" if outside else ""


def use(hub: Hub) -> Callable[[], None]:
    """A function that makes *hub* the one of this process; its waits take no time."""

    def patch() -> None:
        from huggingface_hub import constants
        from huggingface_hub.utils import close_session

        close_session()
        constants.ENDPOINT = hub.url
        constants.HUGGINGFACE_CO_URL_TEMPLATE = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        constants.HF_HUB_DISABLE_XET = True
        constants.HF_HUB_CACHE = str(Path("cache").absolute())
        os.environ |= {"HF_TOKEN": hub.token, "NO_PROXY": "127.0.0.1,localhost"}
        time.sleep = lambda seconds: None

    return patch


# Signals, and two stages at once

STAGES = {
    "gen-data --n 300 --valid 4 --test 60 --workers 1 --out out": "data",
    "merge --adapter adapter --verify none --out out": "merged",
    "quantize --model merged --out out": "quantized",
    "quantize --model merged --format gguf --out out": "quantized",
    "eval --data data --limit 8 --max-new-tokens 4 --model merged --out out": "eval",
    "compare eval/random eval/merged --out out": "comparison",
    "publish --model merged --license mit --name x --out out": "release",
}
_undisturbed: dict[str, tuple[str, float]] = {}


def _expected(words: str) -> tuple[str, float]:
    """The digest that *words* give, and the seconds that they take, undisturbed, in the directory as it is."""
    if words not in _undisturbed:
        done = run(words.replace("--out out", "--out undisturbed/out"))
        manifest = artifacts.read(Path("undisturbed/out"), STAGES.get(words, [*artifacts.MADE_BY]))
        _undisturbed[words] = (_contents(manifest), done.seconds)
    return _undisturbed[words]


def _contents(manifest: artifacts.Manifest) -> str:
    return json.dumps([manifest.inputs, manifest.files], sort_keys=True)


def signals(seed: int, count: int) -> Iterator[Case]:
    """A signal at any moment: the artifact is whole or absent, and the same command then makes it."""
    chance = random.Random(seed)
    for words in STAGES:
        for _ in range(count):
            number = chance.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
            share = chance.random()

            def during(process: int, words: str = words, share: float = share, number: int = number) -> None:
                time.sleep(share * _undisturbed[words][1])
                os.kill(process, number)

            def check(done: Done, words: str = words, number: int = number) -> str:
                left = [path.name for path in Path().glob(".out*") if "progress" not in path.name]
                if left and number != signal.SIGKILL and done.status >= 0:
                    return f"{left[0]} is left"
                if (
                    Path("out").exists()
                    and _contents(artifacts.read(Path("out"), STAGES[words])) != _expected(words)[0]
                ):
                    return "another artifact"
                again = run(words)
                if again.status or _contents(artifacts.read(Path("out"), STAGES[words])) != _expected(words)[0]:
                    return f"the second run differs: {again.printed}"
                return ""

            name = f"{signal.Signals(number).name} at {share:.2f}: {words}"
            yield Case("signals", name, words, lambda words=words: _expected(words), check=check, during=during)


def at_once(seed: int, count: int) -> Iterator[Case]:
    """An input replaced by another artifact while a stage reads it: its output is of the one or of the other."""
    chance = random.Random(seed)
    readers = [words for words in READERS["merged"] if "--out" in words and not words.startswith("publish")]
    for words in readers:
        for _ in range(count):
            share = chance.random()

            def set_up(words: str = words) -> None:
                _expected(words)
                if f"{words} other" not in _undisturbed:
                    os.rename("merged", "first")
                    os.rename("other", "merged")
                    _undisturbed[f"{words} other"] = _expected_now(words)
                    os.rename("merged", "other")
                    os.rename("first", "merged")

            def during(process: int, words: str = words, share: float = share) -> None:
                time.sleep(share * _undisturbed[words][1])
                os.rename("merged", "first")
                os.rename("other", "merged")

            def check(done: Done, words: str = words) -> str:
                if done.status:
                    return ""
                got = _contents(artifacts.read(Path("out"), [*artifacts.MADE_BY]))
                both = (_undisturbed[words][0], _undisturbed[f"{words} other"][0])
                return "" if got in both else "weights of one artifact, and the digest of the other"

            yield Case("at once", f"{share:.2f}: {words}", words, set_up, check=check, during=during)
    for words, kind in STAGES.items():
        for _ in range(count // 2):
            share = chance.random()

            def second(process: int, words: str = words, share: float = share) -> None:
                time.sleep(share * _undisturbed[words][1])
                run(words)

            def whole(done: Done, words: str = words, kind: str = kind) -> str:
                same = _contents(artifacts.read(Path("out"), kind)) == _expected(words)[0]
                return "" if same else "another artifact"

            yield Case(
                "at once",
                f"twice {share:.2f}: {words}",
                words,
                lambda w=words: _expected(w),
                check=whole,
                during=second,
            )


def _expected_now(words: str) -> tuple[str, float]:
    done = run(words.replace("--out out", "--out undisturbed-other/out"))
    return _contents(artifacts.read(Path("undisturbed-other/out"), [*artifacts.MADE_BY])), done.seconds
