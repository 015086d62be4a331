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
    *(
        Case(
            f"two sets of weights in {command.split()[0]}",
            command,
            1,
            "remove one",
            {
                "model/model.safetensors.index.json": {"weight_map": {"lm_head.weight": "other.safetensors"}},
                "model/other.safetensors": b"",
            },
        )
        for command in (f"{ASK} model", f"{EVAL} model", "quantize --model model --out out")
    ),
    # Special files
    *(
        Case(f"{name} as {special} in {command.split()[0]}", command, 1, word, {name: Path(special)})
        for special in ("/dev/zero", "fifo")
        for name, command, word in (
            ("model/model.safetensors", f"{ASK} model", "ordinary"),
            ("model/model.safetensors", f"{EVAL} model", "ordinary"),
            ("model/tokenizer.json", f"{ASK} model", "ordinary"),
            ("model/config.json", "quantize --model model --out out", "ordinary"),
            ("adapter/adapter_config.json", MERGE, "ordinary"),
            ("eval/manifest.json", "samples eval", "not a finished artifact"),
        )
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
    # Time
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
    # Memory
    Case(
        "a thousand million completions", f"{TRAIN} --prompts 1 --num-generations 1000000000 --micro-batch 1", 2, "GB"
    ),
    Case("a million million prompts", f"{TRAIN} --prompts 1000000000000", 2, "too large"),
    Case("a large rank", f"{TRAIN} --lora-r 1000000", 2, "lora-r"),
    # Figures without a limit
    *(
        Case(f"{flag} {value}", f"{command} {flag} {value}", 2, flag.strip("-").split("-")[0])
        for command, flag, value in (
            *((TRAIN, "--learning-rate", value) for value in ("inf", "nan", "1e308")),
            *((TRAIN, "--temperature", value) for value in ("inf", "1e308")),
            (TRAIN, "--beta", "1e308"),
            (TRAIN, "--trl", "entropy_coef=1e308"),
            (TRAIN, "--seed", 2**32),
            (f"{EVAL} model", "--temperature", "1e308"),
            (f"{EVAL} model", "--temperature", "1e-308"),
            (f"{EVAL} model", "--seed", 2**64),
            ("gen-data --out out", "--seed", 2**32),
            (f"{ASK} model", "--seed", 2**32),
        )
    ),
    *(
        Case(f"a server at {url}", f"{EVAL} m --engine openai --base-url {url}", 2, "--base-url should be like")
        for url in ("http://[", "http://a:b/v1", "http://a:99999/v1", "'http://a\nb'")
    ),
    # Rewards
    *(
        Case(f"a weight of {value}", f"{TRAIN} --reward correct={value}", 2, word)
        for value, word in (("inf", "finite"), ("1e308", "finite"), ("nan", "finite"), ("0", "weight 0"))
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
                ("is a list", "def reward(grade, row, tokens): return [1.0]", "finite number"),
                ("exits", "import sys\ndef reward(grade, row, tokens): sys.exit()", "failed"),
                ("exits when imported", "import sys\nsys.exit()", "cannot be imported"),
            )
        )
    ),
    # Puzzles
    Case("large numbers", "solve 999999999999 1 --target 999999999999 --all", 0, "999999999999 * 1"),
    Case("the largest numbers", f"solve {' '.join(['999999999999999'] * 5)} 7 --target 7 --all", 0, "distinct"),
    Case("too large numbers", "solve 1000000000000000 1 --target 1", 1, "15 digits"),
    # Files of another shape
    *(
        Case(f"a manifest: {name}", "samples eval", 1, word, {"eval/manifest.json": content})
        for name, content, word in (
            ("a list", "[]", "an object"),
            ("nested", NESTED, "nested"),
            ("not JSON", "{", "not JSON"),
            ("no kind", "{}", "kind"),
            ("kind", {"kind": []}, "eval"),
            ("options", {"options": 3}, "options"),
            ("files", {"files": []}, "files"),
            ("a file", {"files": {"details.json": "x"}}, "files.details.json"),
            ("a file without a size", {"files": {"details.json": {"sha256": "0"}}}, "size"),
            ("a file outside", {"files": {"../details.json": {"sha256": "0", "size": 1}}}, "../details.json"),
            ("inputs", {"inputs": {"model": {"digest": 3}}}, "inputs.model.digest"),
            ("the manifest of an input", {"inputs": {"model": {"manifest": []}}}, "inputs.model.manifest"),
            ("an unknown field", {"extra": 1}, "extra"),
            ("half a character", {"versions": {"a": "\ud800"}}, "surrogates"),
        )
    ),
    *(
        Case(
            f"metrics: {name}",
            "report --result eval --out page.html",
            1,
            word,
            {"eval/details.json": content},
            seal=True,
        )
        for name, content, word in (
            ("a list", "[]", "an object"),
            ("nested", NESTED, "nested"),
            ("n", {"n": "many"}, "`n`"),
            ("no puzzles", {"n": 0}, "0 puzzles"),
            ("an interval", {"interval": [1]}, "damaged"),
            ("infinite", {"accuracy": float("inf")}, "accuracy"),
            ("a model", {"model": "m"}, "model"),
            ("reasons", {"reasons": {"no-answer": "x"}}, "reasons.no-answer"),
            ("a breakdown", {"groups": {"numbers": {"3": {"interval": 3}}}}, "groups.numbers.3"),
        )
    ),
    *(
        Case(f"a sample: {name}", "samples eval", 1, word, {"eval/samples.jsonl": content}, seal=True)
        for name, content, word in (
            ("a list", "[]\n", "an object"),
            ("not JSON", "x\n", "line 1, is damaged (not JSON"),
            ("completion", {"completion": 3}, "completion"),
            ("correct", {"correct": "yes"}, "correct"),
            ("nums", {"nums": ["x"]}, "`nums`"),
        )
    ),
    *(
        Case(
            f"an adapter's configuration in {command.split()[0]}: {name}",
            command,
            1,
            word,
            {"adapter/adapter_config.json": content},
        )
        for command in (f"{ASK} adapter", MERGE)
        for name, content, word in (
            ("a list", "[]", "an object"),
            ("nested", NESTED, "nested"),
            ("r", {"r": "four"}, "`r`"),
            ("rank_pattern", {"rank_pattern": []}, "rank_pattern"),
            ("alpha", {"lora_alpha": float("inf")}, "lora_alpha"),
            ("base", {"base_model_name_or_path": ["model"]}, "base_model_name_or_path"),
            ("another type", {"peft_type": "XLORA", "adapters": {"0": "elsewhere/adapter"}}, "LoRA"),
        )
    ),
    *(
        Case(f"a configuration: {name}", f"{ASK} model", 1, word, {"model/config.json": content})
        for name, content, word in (
            ("a list", "[]", "an object"),
            ("nested", NESTED, "nested"),
            ("quantization", {"quantization_config": []}, "quantization_config"),
            ("unknown", {"model_type": "unheard-of"}, "unheard-of"),
        )
    ),
    *(
        Case(f"a GGUF file: {name}", f"{ASK} model.gguf", 1, "cannot be loaded", _gguf(*field))
        for name, field in (
            ("no architecture", ("llama.block_count", 4, struct.pack("<I", 2))),
            ("a list without end", ("tokens", 9, struct.pack("<IQ", 0, 1 << 60))),
            ("a list of texts without end", ("tokens", 9, struct.pack("<IQ", 8, 1 << 60))),
            ("a list of lists", ("tokens", 9, struct.pack("<IQ", 9, 1))),
            ("a text without end", ("general.name", 8, struct.pack("<Q", 1 << 60))),
        )
    ),
    Case("a generation configuration: a list", f"{ASK} model", 1, "an object", {"model/generation_config.json": "[]"}),
    Case(
        "a generation configuration: the end",
        f"{ASK} model",
        1,
        "eos_token_id",
        {"model/generation_config.json": {"eos_token_id": "x"}},
    ),
    *(
        Case(
            f"a chat template: {name}",
            f"{ASK} model",
            1,
            "chat_template.jinja fails",
            {"model/chat_template.jinja": content},
        )
        for name, content in (
            ("syntax", "{% for"),
            ("undefined", "{{ messages[0].content.x.y }}"),
            ("division by zero", "{{ 1 / 0 }}"),
            ("endless", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
            ("an escape in its message", "{{ raise_exception('" + ESCAPE + "') }}"),
        )
    ),
    # Surroundings
    Case("a full disk", "grade --out /dev/full", 1, "no space left", stdin=json.dumps(_row()) + "\n"),
    Case("a full disk for a page", "report --result eval --out /dev/full", 1, "not a report"),
    *(
        Case(f"{name}: {command}", command, 0, word, environment=environment)
        for command, word in (("samples eval", "3 4"), ("solve 3 4 --target 7", "="), ("--help", "train"))
        for name, environment in (
            ("no kind of terminal", {"TERM": ""}),
            ("an unknown kind of terminal", {"TERM": "dumb"}),
            ("a home that cannot be written", {"HOME": "/proc/none", "XDG_CACHE_HOME": "/proc/none"}),
        )
    ),
    Case("a terminal of one column", "samples eval", 0, "3", environment={"COLUMNS": "1", "LINES": "1"}),
    *(
        Case(f"LOCAL_WORLD_SIZE={size}", f"{EVAL} model", 0, "solved", environment={"LOCAL_WORLD_SIZE": size})
        for size in ("0", "-1", "many")
    ),
    Case("an output below a file", "gen-data --n 20 --out rows.jsonl/out", 1, "cannot be written"),
    Case("an output that cannot be written", "gen-data --n 20 --out /proc/out", 1, "cannot be written"),
]
