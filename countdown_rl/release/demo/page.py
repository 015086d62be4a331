"""The demo: one self-contained HTML page on which a model solves the puzzles that a reader types.

The page holds a GGUF file and wllama, which is llama.cpp compiled to WebAssembly. It opens from disk, needs no network,
and solves an example at once unless the model is large. Prompt and greedy decoding are those of an evaluation, and the
answer is graded in exact fractions by the rules of the grader. The same inputs give the same bytes.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from countdown_rl.core import formatting
from countdown_rl.core.errors import ArtifactError, ModelError, UsageError
from countdown_rl.core.manifest import ProvenanceEntry, provenance_chain
from countdown_rl.evaluation import results
from countdown_rl.models import chat_template, load, reference
from countdown_rl.release.templates import html_templates
from countdown_rl.tasks.probe import data, initial_model, layout, trained_on
from countdown_rl.tasks.task import REASONS

#: The runtime, and its version in the npm registry; ``README.md`` there has the origin of each file.
WLLAMA = Path(__file__).parents[2] / "assets" / "wllama"
VERSION = "2.3.7"
#: Most tokens of a completion, as in an evaluation.
MAX_TOKENS = 256
#: Name of the page in a release: the one that a static Space shows.
INDEX = "index.html"
#: Test puzzles that the page offers.
PUZZLES = 100
#: Bytes of the largest model; browsers refuse texts not much larger than its base64.
MAX_BYTES = 200_000_000


def of_model(model: Path, evaluations: Sequence[results.Result] = ()) -> str:
    """The HTML of the page about the GGUF file *model*, or the one in the directory *model*.

    Of *evaluations* the page states the greedy one of the last model that the file was made from.
    """
    if not model.exists():
        raise ArtifactError(
            f"{model} does not exist; `countdown-rl quantize --format gguf` makes a GGUF file."
        )
    ref = reference.find_model(str(model))
    if ref.kind != "gguf":
        raise UsageError(
            f"{model} is not GGUF, which the demo needs; `countdown-rl quantize --format gguf` makes it."
        )
    chain = provenance_chain(ref.as_input())
    order = {link.digest: index for index, link in enumerate(chain)}
    measured = [result for result in evaluations if result.metrics.model.digest in order]
    measured = [result for result in measured if result.metrics.decoding.greedy]
    evaluation = max(
        measured, key=lambda result: order[str(result.metrics.model.digest)], default=None
    )
    return text(reference.local_path(ref), chain, evaluation)


def text(
    file: Path, chain: Sequence[ProvenanceEntry], evaluation: results.Result | None = None
) -> str:
    """The HTML of the page about the GGUF *file*, made from *chain*; *evaluation* gives its accuracy and puzzles."""
    if file.stat().st_size > MAX_BYTES:
        raise UsageError(
            f"{file} is too large for a page, which holds at most {MAX_BYTES / 1e6:,.0f} MB; quantize it."
        )
    template = html_templates().get_template("release/demo/page.html.jinja")
    html = template.render(
        name=initial_model(chain).name,
        trained=any(link.by_grpo for link in chain),
        version=VERSION,
        max_tokens=MAX_TOKENS,
        reasons={**REASONS, **trained_on(chain).reasons},
        license=(WLLAMA / "LICENSE").read_text("utf-8"),
        **{name: getattr(formatting, name) for name in ("interval", "percent", "plural")},
        **_prompt(file, chain),
        **_measured(chain, evaluation),
    )
    html = formatting.printable(html)
    parts = {"MODEL": file} | {name: WLLAMA / name for name in ("wllama.min.js", "wllama.wasm.gz")}
    for name, path in parts.items():  # not by the template, which would copy them several times
        html = html.replace(f"@{name}@", base64.b64encode(path.read_bytes()).decode())
    return html


def _prompt(file: Path, chain: Sequence[ProvenanceEntry]) -> dict[str, Any]:
    """The prompt around numbers and target, and the counts of numbers that the model was trained on."""
    task = trained_on(chain)
    if not task.demo:
        raise UsageError(f"{file} was trained on {task.name}, which the demo page is not for.")
    row = task.row({**task.demo, **layout(chain)})
    if row.style.pattern:
        raise UsageError(
            f"{file} answers in the style {row.style_name}, which the demo page does not read."
        )
    *numbers, target = row.asked
    prompt = chat_template.render(
        load.load_tokenizer(reference.find_model(str(file))), row.messages()
    )
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


def _measured(
    chain: Sequence[ProvenanceEntry], evaluation: results.Result | None
) -> dict[str, Any]:
    """The scores of *evaluation*, and the first of its puzzles with the range of all."""
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
        "ranges": [(min(values), max(values)) for values in (numbers, targets)],
        "puzzles": puzzles[:PUZZLES],
    }
