"""Hostile inputs: what is damaged, the command that reads it, and how that command must end.

Each is run in a directory with the files of :func:`tests.hostile.test_hostile.place`: ``model`` (a checkpoint),
``adapter`` (a LoRA adapter over it), ``rows.jsonl`` (puzzles) and ``eval`` (an evaluation). ``files`` replaces some:
text and bytes are written as they are, a path becomes a link to it, a mapping is merged into the JSON object that is
there, and None removes the file. ``environment`` sets variables. ``seal`` brings the manifest of ``eval`` up to date
with them.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

ASK = "ask 3 4 --target 7 --model"
EVAL = "eval --data rows.jsonl --out out --limit 1 --max-new-tokens 4 --model"
TRAIN = "train --model model --data rows.jsonl --out out --log log.csv --checkpoints kept --max-completion-length 16"
QUANTIZE = "quantize --model model --out out"
MERGE = "merge --adapter adapter --out out --verify none"
ESCAPE, C1, BIDI = "\x1b]0;owned\x07", "\x9b31m", "\u202e"
BIG = 10**3_999
NESTED = "[" * 5_000 + "]" * 5_000


class Case(NamedTuple):
    """One input; ``word`` is in what the command prints, whose exit status is ``status``."""

    name: str
    command: str
    status: int
    word: str
    files: Mapping[str, Any] = {}
    stdin: str = ""
    seal: bool = False
    environment: Mapping[str, str] = {}


def _row(**fields: Any) -> dict[str, Any]:
    return {"nums": [3, 4], "target": 7, "completion": "<answer>3+4</answer>"} | fields


def _gguf(name: str, kind: int, value: bytes) -> dict[str, bytes]:
    field = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value
    return {"model.gguf": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field}


CODE = {"auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}, "model_type": "custom"}
SLOW_TOKENIZER = {"auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}, "tokenizer_class": "Custom"}
INDEX = "model/model.safetensors.index.json"
OUTSIDE = {"weight_map": {"lm_head.weight": "../outside.safetensors"}}
OTHER = {"weight_map": {"lm_head.weight": "other.safetensors"}}
ELSEWHERE = {"peft_type": "LORA", "base_model_name_or_path": "elsewhere/model"}
ESCAPED = {"completion": ESCAPE + C1 + BIDI}
#: Chat templates that fail.
TEMPLATES = (
    "{% for",
    "{{ messages[0].content.x.y }}",
    "{{ 1 / 0 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ raise_exception('" + ESCAPE + "') }}",
)

CASES = [
    # Code of a model, and pickles
    Case("code of a configuration", f"{ASK} model", 1, "trust", {"model/config.json": CODE}),
    Case("code of a configuration in merge", MERGE, 1, "trust", {"model/config.json": CODE}),
    Case("code of a configuration in quantize", QUANTIZE, 1, "trust", {"model/config.json": CODE}),
    Case(
        "code of a tokenizer",
        f"{ASK} model",
        1,
        "trust",
        {"model/tokenizer_config.json": SLOW_TOKENIZER, "model/tokenizer.json": None},
    ),
    Case(
        "an index that names a pickle",
        f"{ASK} model",
        1,
        "pytorch_model.bin",
        {
            "model/model.safetensors": None,
            "model/model.safetensors.index.json": {"weight_map": {"lm_head.weight": "pytorch_model.bin"}},
            "model/pytorch_model.bin": b"pickle",
            "model/other.safetensors": b"",
        },
    ),
    Case("an index that names a file outside", QUANTIZE, 1, "outside.safetensors", {INDEX: OUTSIDE}),
    Case(
        "a configuration that names its weights",
        f"{ASK} model",
        1,
        "transformers_weights",
        {"model/config.json": {"transformers_weights": "pytorch_model.bin"}},
    ),
    Case("a model that is also an adapter", f"{ASK} model", 1, "adapter", {"model/adapter_config.json": ELSEWHERE}),
    Case("two sets of weights", f"{EVAL} model", 1, "remove one", {INDEX: OTHER, "model/other.safetensors": b""}),
    # Special files
    *(
        Case(f"{name} as {special}", command, 1, word, {name: Path(special)})
        for special in ("/dev/zero", "fifo")
        for name, command, word in (
            ("model/model.safetensors", f"{ASK} model", "ordinary"),
            ("model/tokenizer.json", f"{EVAL} model", "ordinary"),
            ("model/config.json", QUANTIZE, "ordinary"),
            ("adapter/adapter_config.json", MERGE, "ordinary"),
            ("eval/manifest.json", "samples eval", "not a finished artifact"),
        )
    ),
    # Text that a terminal obeys
    *(
        Case(f"escapes in a completion: {command}", command, 0, word, {"eval/samples.jsonl": ESCAPED}, seal=True)
        for command, word in (("samples eval", r"\x1b]0;owned"), ("samples eval --json", r"\u001b]0;owned"))
    ),
    Case(
        "escapes in a grade",
        "grade",
        0,
        r"\u009b",
        stdin='{"nums": [3], "target": 3, "completion": "<answer>\\u009b31m\\u202e</answer>"}\n',
    ),
    Case("escapes in the name of a model", f"{ASK} 'a{ESCAPE}b'", 1, r"a\x1b]0;owned"),
    Case("markup in the name of a model", f"{ASK} '[/b]x[/b]'", 1, "[/b]x[/b]"),
    # Time and memory
    *(
        Case(f"numbers of 4,000 digits: {name}", "grade", 1, "15 digits", stdin=json.dumps(_row(**fields)) + "\n")
        for name, fields in (("given", {"nums": [BIG] * 6}), ("target", {"target": BIG}))
    ),
    Case(
        "an exponent in a gold answer",
        "grade",
        1,
        "exact number",
        stdin=json.dumps({"task": "gsm8k", "question": "?", "gold": "1e1000000000", "completion": ""}) + "\n",
    ),
    Case("a thousand million completions", f"{TRAIN} --num-generations 1000000000 --micro-batch 1", 2, "GB"),
    Case("a million million prompts", f"{TRAIN} --prompts 1000000000000", 2, "too large"),
    Case("the largest numbers", f"solve {' '.join(['999999999999999'] * 5)} 7 --target 7 --all", 0, "distinct"),
    Case("too large numbers", "solve 1000000000000000 1 --target 1", 2, "15 digits"),
    # Figures without a limit
    *(
        Case(f"{flag} {value}", f"{command} {flag} {value}", 2, flag.strip("-").split("-")[0])
        for command, flag, value in (
            *((TRAIN, "--learning-rate", value) for value in ("inf", "nan", "1e308")),
            (TRAIN, "--temperature", "1e308"),
            (TRAIN, "--trl", "entropy_coef=1e308"),
            (TRAIN, "--seed", 2**32),
            (TRAIN, "--lora-r", 10**6),
            (f"{EVAL} model", "--temperature", "1e-308"),
            (f"{EVAL} model", "--seed", 2**64),
            ("gen-data --out out", "--seed", 2**32),
        )
    ),
    *(
        Case(f"a server at {url}", f"{EVAL} m --engine openai --base-url {url}", 2, "--base-url should be like")
        for url in ("http://[", "http://a:99999/v1", "'http://a\nb'")
    ),
    # Rewards
    *(
        Case(f"a weight of {value}", f"{TRAIN} --reward correct={value}", 2, word)
        for value, word in (("inf", "finite"), ("nan", "finite"), ("0", "weight 0"))
    ),
    *(
        Case(
            f"a reward that {name}", f"{TRAIN} --reward hostile_{index}:reward", 2, word, {f"hostile_{index}.py": code}
        )
        for index, (name, code, word) in enumerate(
            (
                ("is text", "def reward(grade, row, tokens): return 'much'", "finite number"),
                ("is None", "def reward(grade, row, tokens): return None", "finite number"),
                ("is NaN", "def reward(grade, row, tokens): return float('nan')", "finite number"),
                ("exits", "import sys\ndef reward(grade, row, tokens): sys.exit()", "failed"),
                ("exits when imported", "import sys\nsys.exit()", "cannot be imported"),
            )
        )
    ),
    # Files of another shape
    *(
        Case(
            f"{file}: {name}",
            command,
            1,
            word,
            {file: content},
            seal=file.startswith("eval/") and "manifest" not in file,
        )
        for file, command, contents in (
            (
                "eval/manifest.json",
                "samples eval",
                {
                    "a list": ("[]", "an object"),
                    "nested": (NESTED, "nested"),
                    "not JSON": ("{", "not JSON"),
                    "no kind": ("{}", "kind"),
                    "options": ({"options": 3}, "options"),
                    "a file": ({"files": {"details.json": "x"}}, "files.details.json"),
                    "a file outside": ({"files": {"../details.json": {"sha256": "0", "size": 1}}}, "../details.json"),
                    "inputs": ({"inputs": {"model": {"digest": 3}}}, "inputs.model.digest"),
                    "the manifest of an input": ({"inputs": {"model": {"manifest": []}}}, "inputs.model.manifest"),
                    "an unknown field": ({"extra": 1}, "extra"),
                    "half a character": ({"versions": {"a": "\ud800"}}, "surrogates"),
                },
            ),
            (
                "eval/details.json",
                "report --result eval --out page.html",
                {
                    "a list": ("[]", "an object"),
                    "n": ({"n": "many"}, "`n`"),
                    "no puzzles": ({"n": 0}, "0 puzzles"),
                    "infinite": ({"accuracy": float("inf")}, "accuracy"),
                    "a breakdown": ({"groups": {"numbers": {"3": {"interval": 3}}}}, "groups.numbers.3"),
                },
            ),
            (
                "eval/samples.jsonl",
                "samples eval",
                {
                    "not JSON": ("x\n", "line 1, is damaged (not JSON"),
                    "completion": ({"completion": 3}, "completion"),
                    "nums": ({"nums": ["x"]}, "`nums`"),
                },
            ),
            (
                "adapter/adapter_config.json",
                MERGE,
                {
                    "nested": (NESTED, "nested"),
                    "r": ({"r": "four"}, "`r`"),
                    "alpha": ({"lora_alpha": float("inf")}, "lora_alpha"),
                    "base": ({"base_model_name_or_path": ["model"]}, "base_model_name_or_path"),
                    "another type": ({"peft_type": "XLORA", "adapters": {"0": "elsewhere/adapter"}}, "LoRA"),
                },
            ),
            (
                "model/config.json",
                f"{ASK} model",
                {
                    "a list": ("[]", "an object"),
                    "unknown": ({"model_type": "unheard-of"}, "unheard-of"),
                },
            ),
            (
                "model/generation_config.json",
                f"{ASK} model",
                {"a list": ("[]", "an object"), "the end": ({"eos_token_id": "x"}, "eos_token_id")},
            ),
            (
                "model/chat_template.jinja",
                f"{ASK} model",
                {template[:9]: (template, "chat_template.jinja fails") for template in TEMPLATES},
            ),
        )
        for name, (content, word) in contents.items()
    ),
    *(
        Case(f"a GGUF file: {name}", f"{ASK} model.gguf", 1, "cannot be loaded", _gguf(*field))
        for name, field in (
            ("no architecture", ("llama.block_count", 4, struct.pack("<I", 2))),
            ("a list without end", ("tokens", 9, struct.pack("<IQ", 0, 1 << 60))),
            ("a text without end", ("general.name", 8, struct.pack("<Q", 1 << 60))),
        )
    ),
    # Surroundings
    Case("a full disk", "grade --out /dev/full", 1, "no space left", stdin=json.dumps(_row()) + "\n"),
    *(
        Case(f"{name}: {command}", command, 0, word, environment=environment)
        for command, word in (("samples eval", "3 4"), ("--help", "train"))
        for name, environment in (
            ("an unknown kind of terminal", {"TERM": "dumb"}),
            ("a home that cannot be written", {"HOME": "/proc/none", "XDG_CACHE_HOME": "/proc/none"}),
            ("a terminal of one column", {"COLUMNS": "1", "LINES": "1"}),
        )
    ),
    Case("no count of processes", f"{EVAL} model", 0, "solved", environment={"LOCAL_WORLD_SIZE": "many"}),
    *(
        Case(f"an output at {out}", f"gen-data --n 20 --out {out}", 1, "cannot be written")
        for out in ("rows.jsonl/out", "/proc/out")
    ),
]
