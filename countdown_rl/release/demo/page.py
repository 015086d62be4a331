"""The demo: one self-contained HTML page on which a model solves the puzzles that a reader types.

The page holds a GGUF file and wllama, which is llama.cpp compiled to WebAssembly. It opens from
disk, needs no network, and solves an example at once unless the model is large. Prompt and greedy
decoding are those of an evaluation, and the answer is graded in exact fractions by the rules of the
grader. The same inputs give the same bytes.
"""

import base64
import gzip
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from gguf import GGUFReader

from countdown_rl.core import formatting
from countdown_rl.core.errors import ModelError, UsageError
from countdown_rl.core.manifest import ProvenanceEntry, provenance_chain
from countdown_rl.evaluation import results
from countdown_rl.evaluation.results import Result
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.export.quantize import quantize_model
from countdown_rl.models import chat_template, load, reference
from countdown_rl.models.reference import SHIPPED, ModelRef
from countdown_rl.release.templates import html_templates
from countdown_rl.tasks.probe import data, initial_model, layout, trained_on
from countdown_rl.tasks.task import REASONS

#: The runtime, and its version in the npm registry; ``README.md`` there has each file's origin.
WLLAMA = Path(__file__).parents[2] / "assets" / "wllama"
VERSION = "2.3.7"
#: Most tokens of a completion, as in an evaluation.
MAX_TOKENS = 256
#: Test puzzles that the page offers.
PUZZLES = 100
#: Bytes of the largest model; browsers refuse texts not much larger than its base64.
MAX_BYTES = 200_000_000


def of_model(model: Path, evaluations: Sequence[Result] = ()) -> str:
    """Return the HTML of the page about a GGUF file.

    Args:
        model: the file, or the directory that holds it. If the file was trained from a model that
            ships with this package, the page can also run that one.
        evaluations: the page states the greedy ones of the model that training began with and of
            the last one that the file was made from.
    """
    ref = reference.find_model(str(model))
    if ref.kind != "gguf":
        raise UsageError(
            f"{model} is not GGUF, which the demo needs; "
            "`countdown-rl quantize --format gguf` makes it."
        )
    chain = provenance_chain(ref.as_input())
    greedy = {}
    for result in evaluations:
        if result.metrics.decoding.greedy:
            greedy[result.metrics.model.digest] = result
    before = None
    change = b""
    if any(link.by_grpo for link in chain):
        before = greedy.pop(initial_model(chain).digest, None)
        change = _change(ref, initial_model(chain))
    measured = [greedy[link.digest] for link in chain if link.digest in greedy]
    evaluation = measured[-1] if measured else None
    return text(
        reference.local_path(ref), chain, evaluation=evaluation, before=before, change=change
    )


def text(
    file: Path,
    chain: Sequence[ProvenanceEntry],
    *,
    evaluation: Result | None = None,
    before: Result | None = None,
    change: bytes = b"",
) -> str:
    """Return the HTML of the page about the GGUF *file*, made from *chain*.

    *evaluation* gives its accuracy and puzzles, *before* the accuracy of the initial policy, and
    *change* is that of :func:`_change`.
    """
    if file.stat().st_size > MAX_BYTES:
        raise UsageError(
            f"{file} is too large for a page, which holds at most {MAX_BYTES / 1e6:,.0f} MB; "
            "quantize it."
        )
    template = html_templates().get_template("release/demo/page.html.jinja")
    html = template.render(
        name=initial_model(chain).name,
        trained=any(link.by_grpo for link in chain),
        version=VERSION,
        max_tokens=MAX_TOKENS,
        reasons={**REASONS, **trained_on(chain).reasons},
        license=(WLLAMA / "LICENSE").read_text("utf-8"),
        can_switch=bool(change),
        before=before,
        **{name: getattr(formatting, name) for name in ("interval", "percent", "plural")},
        **_prompt(file, chain),
        **_measured(chain, evaluation),
    )
    html = formatting.printable(html)
    contents = {"MODEL": file.read_bytes(), "CHANGE": change}
    for name in ("wllama.min.js", "wllama.wasm.gz"):
        contents[name] = (WLLAMA / name).read_bytes()
    for name, content in contents.items():  # not by the template, which would copy them
        html = html.replace(f"@{name}@", base64.b64encode(content).decode())
    return html


def _change(ref: ModelRef, initial: ProvenanceEntry) -> bytes:
    """Return the bytes of the tensors of *initial* less those of *ref*, modulo 256, compressed.

    Empty if *initial* does not ship with this package.
    """
    if ref.manifest is None or initial.name not in SHIPPED:
        return b""
    options = QuantizeOptions(format="gguf", gguf_type=ref.manifest.facts["gguf_type"])
    with TemporaryDirectory() as scratch:
        out = Path(scratch, "gguf")
        name = quantize_model(reference.find_model(initial.name), out, options).facts["file"]
        readers = GGUFReader(out / name), GGUFReader(reference.local_path(ref))
        before, after = (reader.data[reader.data_offset :] for reader in readers)
        return gzip.compress(np.subtract(before, after).tobytes(), mtime=0)


def _prompt(file: Path, chain: Sequence[ProvenanceEntry]) -> dict[str, object]:
    """Return the prompt around numbers and target, and the counts of numbers of the training."""
    task = trained_on(chain)
    if not task.demo:
        raise UsageError(f"{file} was trained on {task.name}, which the demo page is not for.")
    row = task.row({**task.demo, **layout(chain)})
    if row.style.pattern:
        raise UsageError(
            f"{file} answers in the style {row.style_name}, which the demo page does not read."
        )
    *numbers, target = row.asked
    tokenizer = load.load_tokenizer(reference.find_model(str(file)))
    prompt = chat_template.render(tokenizer, row.messages())
    try:
        head, rest = prompt.split(" ".join(numbers))
        between, tail = rest.split(target)
    except ValueError:
        raise ModelError(
            f"the chat template of {file} does not show numbers and target once each."
        ) from None
    made_of = data(chain)
    splits = made_of.facts.get("splits", {}) if made_of else {}
    groups = splits.get("train", {}).get("groups", {})
    sizes = sorted(map(int, groups.get("numbers", {}))) or [3, 4]
    return {"prompt": [head, between, tail], "sizes": sizes, "direct": row.style.direct}


def _measured(chain: Sequence[ProvenanceEntry], evaluation: Result | None) -> dict[str, object]:
    """Return the scores of *evaluation*, and the first of its puzzles with the range of all."""
    if evaluation is None:
        return {"metrics": None, "puzzles": []}
    puzzles = [[*map(int, samples[0].row.asked)] for samples in evaluation.by_puzzle]
    numbers = [number for puzzle in puzzles for number in puzzle[:-1]]
    targets = [puzzle[-1] for puzzle in puzzles]
    same = evaluation.metrics.model.digest == chain[-1].digest
    return {
        "metrics": evaluation.metrics,
        "measured": "It" if same else "Before quantization it",
        "split": results.split(evaluation),
        "numbers": numbers,
        "targets": targets,
        "puzzles": puzzles[:PUZZLES],
    }
