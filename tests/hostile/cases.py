"""Hostile inputs: what is damaged, the command that reads it, and how that command must end.

Each is run in a directory with the files of :func:`tests.hostile.test_hostile.place`: ``model`` (a checkpoint),
``adapter`` (a LoRA adapter over it), ``rows.jsonl`` (puzzles) and ``eval`` (an evaluation). ``files`` replaces some:
text and bytes are written as they are, a mapping is merged into the JSON object that is there, and None removes the
file. ``seal`` brings the manifest of ``eval`` up to date with them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

ASK = "ask 3 4 --target 7 --model"
EVAL = "eval --data rows.jsonl --out out --limit 1 --max-new-tokens 4 --model"
TRAIN = "train --model model --data rows.jsonl --out out --log log/log.csv --checkpoints checkpoints"
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


def _row(**fields: Any) -> dict[str, Any]:
    return {"nums": [3, 4], "target": 7, "completion": "<answer>3+4</answer>"} | fields


CODE = {"auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}, "model_type": "custom"}
SLOW_TOKENIZER = {"auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}, "tokenizer_class": "Custom"}
PICKLE_INDEX = {"weight_map": {"lm_head.weight": "pytorch_model.bin"}}
OUTSIDE_INDEX = {"weight_map": {"lm_head.weight": "../outside.safetensors"}}

CASES = [
    # Code of a model
    Case("code of a configuration in ask", f"{ASK} model", 1, "trust", {"model/config.json": CODE}),
    Case("code of a configuration in merge", MERGE, 1, "trust", {"model/config.json": CODE}),
    Case(
        "code of a configuration in quantize",
        "quantize --model model --out out",
        1,
        "trust",
        {"model/config.json": CODE},
    ),
    Case(
        "code of a tokenizer in ask",
        f"{ASK} model",
        1,
        "trust",
        {"model/tokenizer_config.json": SLOW_TOKENIZER, "model/tokenizer.json": None},
    ),
    # Pickles
    Case(
        "an index that names a pickle",
        f"{ASK} model",
        1,
        "pytorch_model.bin",
        {
            "model/model.safetensors": None,
            "model/model.safetensors.index.json": PICKLE_INDEX,
            "model/pytorch_model.bin": b"pickle",
            "model/other.safetensors": b"",
        },
    ),
    Case(
        "an index that names a file outside",
        "quantize --model model --out out",
        1,
        "outside.safetensors",
        {"model/model.safetensors.index.json": OUTSIDE_INDEX},
    ),
    Case(
        "a configuration that names its weights",
        f"{ASK} model",
        1,
        "transformers_weights",
        {"model/config.json": {"transformers_weights": "pytorch_model.bin"}},
    ),
    Case(
        "a model that is also an adapter",
        f"{ASK} model",
        1,
        "adapter",
        {"model/adapter_config.json": {"peft_type": "LORA", "base_model_name_or_path": "elsewhere/model"}},
    ),
    # Text that a terminal obeys
    Case(
        "escapes in a completion",
        "samples eval",
        0,
        r"\x1b]0;owned",
        {"eval/samples.jsonl": {"completion": ESCAPE + C1 + BIDI}},
        seal=True,
    ),
    Case(
        "escapes in a completion as JSON",
        "samples eval --json",
        0,
        r"\u001b]0;owned",
        {"eval/samples.jsonl": {"completion": ESCAPE + C1 + BIDI}},
        seal=True,
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
    Case(
        "markup in the name of a base",
        f"{ASK} adapter",
        1,
        r"\[/b]",
        {"adapter/adapter_config.json": {"base_model_name_or_path": r"\[/b]"}},
    ),
]
