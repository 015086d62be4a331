"""The model card: what a release is, how it was measured, how it came to be, and how to run it.

Everything in it is read from manifests and measurements; nothing is written by hand for one model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from countdown_rl.artifacts import MADE_BY
from countdown_rl.lineage import Link, origin

#: What each kind of weights is, where it loads, and what must be installed for that.
FORMS = {
    "quantized": ("4-bit weights (NF4, double quantization, bf16 compute)", "transformers accelerate bitsandbytes"),
    "merged": ("full-precision weights", "transformers"),
    "model": ("full-precision weights", "transformers"),
    "adapter": ("a LoRA adapter", "transformers peft"),
}
RELATIONS = ("adapter", "finetune", "quantized", "merge")

_EXAMPLE: dict[str, dict[str, Any]] = {
    "countdown": {"nums": [19, 36, 55, 7], "target": 65},
    "gsm8k": {"question": "A shelf holds 3 rows of 12 books. 5 are lent out. How many are left?", "answer": "#### 31"},
}


@dataclass(frozen=True)
class Measured:
    """What one evaluation says. Shares lie between 0 and 1; ``groups`` are (title, accuracy, n, interval)."""

    accuracy: float
    n: int
    interval: tuple[float, float]
    format: float
    groups: Sequence[tuple[str, float, int, tuple[float, float]]]
    decoding: Mapping[str, Any]
    data: Mapping[str, Any]
    task: str


@dataclass(frozen=True)
class Story:
    """All that a card tells. ``chain`` runs from the data to these weights; ``files`` are manifest entries."""

    name: str
    kind: str
    chain: Sequence[Link]
    files: Mapping[str, Mapping[str, Any]]
    measured: Measured | None
    comparison: str | None
    base_model: str | None
    base_relation: str
    license: str | None
    datasets: Sequence[str]


def text(story: Story) -> str:
    """The whole card: YAML front matter by huggingface_hub's own classes, then the page."""
    sections = [
        _opening(story),
        _results(story),
        _running(story),
        _training(story),
        _purpose(story),
        _origin(story),
        _files(story),
    ]
    return f"---\n{metadata(story)}\n---\n\n" + "\n\n".join(section.strip() for section in sections if section) + "\n"


def metadata(story: Story) -> str:
    """The card's YAML, as the Hub reads it: where the model comes from, what it is for, how it scores."""
    from huggingface_hub import ModelCardData

    tags = ["countdown-rl", "reasoning", story.measured.task if story.measured else "countdown"]
    if _find(story, "adapter"):
        tags += ["grpo", "reinforcement-learning", "lora"]
    if story.kind == "quantized":
        tags += ["4-bit", "nf4", "bitsandbytes"]
    data = ModelCardData(
        base_model=story.base_model,
        base_model_relation=story.base_relation if story.base_model else None,
        datasets=list(story.datasets) or None,
        language="en",
        library_name="peft" if story.kind == "adapter" else "transformers",
        license=story.license,
        metrics=["accuracy"] if story.measured else None,
        model_name=story.name,
        pipeline_tag="text-generation",
        tags=tags,
        eval_results=_index(story) or None,
    )
    return str(data.to_yaml())


def _index(story: Story) -> list[Any]:
    from huggingface_hub import EvalResult

    measured = story.measured
    if measured is None:
        return []

    def result(title: str | None, accuracy: float, n: int, interval: tuple[float, float]) -> Any:
        return EvalResult(
            task_type="text-generation",
            task_name="Text generation",
            dataset_type=measured.task,
            dataset_name=f"{_TITLES[measured.task]}{f', {title}' if title else ''}",
            dataset_config=title,
            dataset_split="test",
            metric_type="accuracy",
            metric_name="Accuracy (pass@1)",
            metric_value=round(accuracy, 4),
            metric_args={"n": n, "interval_95": [round(end, 4) for end in interval], **measured.decoding},
        )

    whole = result(None, measured.accuracy, measured.n, measured.interval)
    return [whole, *(result(*group) for group in measured.groups)]


_TITLES = {"countdown": "Countdown numbers puzzle, held-out puzzles", "gsm8k": "GSM8K"}


def _opening(story: Story) -> str:
    what, _ = FORMS[story.kind]
    link = f"[{story.base_model}](https://huggingface.co/{story.base_model})"
    base = link if story.base_model else f"`{origin(story.chain).name}`"
    if _find(story, "adapter"):
        made = f"post-trained from {base} with GRPO, which rewards answers that an exact checker finds right"
    else:
        made = f"from {base}, trained on worked solutions of puzzles"
    return (
        f"# {story.name}\n\n"
        f"A language model for the Countdown numbers puzzle (reach a target from given numbers with + − × ÷), {made}. "
        f"This repository holds {what}. It was made and measured by `countdown-rl`, which wrote this page too."
    )


def _results(story: Story) -> str:
    measured = story.measured
    if measured is None:
        return "## Results\n\nThese weights have not been measured."
    rows = [("all puzzles", measured.accuracy, measured.n, measured.interval), *measured.groups]
    table = [f"| {title} | {_percent(share)} | {_range(interval)} | {n:,} |" for title, share, n, interval in rows]
    parts = [
        "## Results\n\nShare of puzzles solved at the first try, on puzzles that training never saw.\n",
        "| puzzles | solved | 95% interval | n |\n| --- | ---: | ---: | ---: |\n" + "\n".join(table) + "\n",
        f"{_decoding(measured.decoding)} {_percent(measured.format)} of the completions keep the format. An answer "
        f"counts only when it keeps the rules and equals the target in exact arithmetic. Puzzles: "
        f"`{measured.data['file']}`, sha256 `{_short(measured.data['digest'])}`.",
        _again(story, measured),
    ]
    if story.comparison:
        parts.append("\n### What each step did\n\n" + _below(story.comparison))
    return "\n".join(part for part in parts if part)


def _again(story: Story, measured: Measured) -> str:
    """The commands that measure it again, where the chain says how its puzzles were made."""
    for link in story.chain:
        split = next((name for name, file in link.files.items() if file["sha256"] == measured.data["digest"]), None)
        if link.kind == "data" and split:
            settings = measured.decoding
            flags = {"n": measured.n} | {key: value for key, value in settings.items() if key != "greedy"}
            return (
                f"\nTo measure it again:\n\n```shell\n{MADE_BY['data']} --out data {_flags(link.options)}\n"
                f"{MADE_BY['eval']} --model . --data data/{split} {_flags(flags)}\n```"
            )
    return ""


def _flags(options: Mapping[str, Any]) -> str:
    words = []
    for key, value in options.items():
        flag = f"--{_flag(key)}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{_flag(key)}")
        elif value is not None:
            words += [f"{flag} {one}" for one in (value if isinstance(value, list | tuple) else [value])]
    return " ".join(words)


def _decoding(settings: Mapping[str, Any]) -> str:
    if settings.get("greedy"):
        return f"Decoding is greedy, at most {settings['max_new_tokens']} tokens."
    return f"Decoding: {', '.join(f'{_flag(key)} {_value(value)}' for key, value in settings.items())}."


def _running(story: Story) -> str:
    from countdown_rl import tasks

    _, needs = FORMS[story.kind]
    task = story.measured.task if story.measured else "countdown"
    tokens = story.measured.decoding["max_new_tokens"] if story.measured else 256
    turns = tasks.get(task).messages(_EXAMPLE[task])
    begun = turns.pop()["content"] if turns[-1]["role"] == "assistant" else ""
    lines = ",\n".join(f'    {{"role": "{turn["role"]}", "content": {_literal(turn["content"])}}}' for turn in turns)
    module, loader = (
        ("peft", "AutoPeftModelForCausalLM") if story.kind == "adapter" else ("transformers", "AutoModelForCausalLM")
    )
    imports = (
        f"from {module} import {loader}\nfrom transformers import AutoTokenizer"
        if module != "transformers"
        else f"from transformers import {loader}, AutoTokenizer"
    )
    also = "\n\nvLLM serves these weights as they are: `vllm serve .`" if story.kind in ("merged", "model") else ""
    return f"""## How to run it

`pip install {needs}`, then, in a copy of this repository (or with its id in place of `"."`):

```python
{imports}

name = "."
tokenizer = AutoTokenizer.from_pretrained(name)
model = {loader}.from_pretrained(name)
turns = [
{lines},
]
prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
prompt += {_literal(begun)}  # the model was trained to go on from here
inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
output = model.generate(**inputs, max_new_tokens={tokens}, do_sample=False)
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
```
{also}"""


def _training(story: Story) -> str:
    parts = ["## How it was trained"]
    for link in story.chain:
        if link.kind not in ("model", "adapter") or not link.options:
            continue
        what = "GRPO with LoRA" if link.kind == "adapter" else "Supervised warm-up on search traces"
        rows = "\n".join(f"| {_flag(key)} | {_value(value)} |" for key, value in _shown(link.options))
        parts.append(f"### {what} (`{MADE_BY[link.kind]}`)")
        parts.append(_course(link.facts))
        parts.append(
            f"<details><summary>All options</summary>\n\n| option | value |\n| --- | --- |\n{rows}\n\n</details>"
        )
        versions = ", ".join(f"{name} {version}" for name, version in sorted(link.versions.items()))
        if versions:
            parts.append(f"With {versions}.")
    if len(parts) == 1:
        parts.append("Its manifest chain does not say.")
    merged = _find(story, "merged")
    agreement = merged.facts.get("agreement", {}).get("with_policy_as_trained") if merged else None
    if agreement:
        parts.append(
            "Merging was checked against the policy as trained, on puzzles of its own: KL "
            f"{agreement['kl']:.2g}, and the same likeliest token at {_percent(agreement['greedy'])} of "
            f"{agreement['positions']:,.0f} places."
        )
    return "\n\n".join(part for part in parts if part)


def _course(facts: Mapping[str, Any]) -> str:
    """One sentence on how training went, as far as its manifest says."""
    if not {"correct_last_tenth", "trainable_parameters", "total_parameters", "steps"} <= facts.keys():
        return ""
    return (
        f"{facts['steps']:,} steps on {facts['trainable_parameters']:,} of {facts['total_parameters']:,} parameters; "
        f"over the last tenth of them {_percent(facts['correct_last_tenth'])} of the sampled answers were right."
    )


def _purpose(story: Story) -> str:
    inherited = "the terms of the model it was trained from apply"
    terms = f"{story.license}; {inherited} as well" if story.license else inherited.capitalize()
    if story.license and not story.base_model:
        terms = story.license
    return f"""## What it is for, and what it is not

For studying reinforcement learning with checkable rewards, and for solving puzzles of the kind it was measured on.
It is no general assistant and no calculator: it may be wrong with confidence, its reasoning need not be how it
found the answer, and outside puzzles like those above nothing was measured. Check every answer.

Licence: {terms}."""


def _origin(story: Story) -> str:
    rows = []
    for number, link in enumerate(story.chain, 1):
        made = f"`{MADE_BY[link.kind]}`" if link.kind in MADE_BY else link.kind
        rows.append(f"| {number} | {link.name} | {made} | `{_short(link.digest)}` |")
    table = "\n".join(rows)
    return f"""## Where it comes from

Each step's manifest, with all its options and the digest of what it was made from, is in `manifest.json`.

| | what | made by | digest |
| ---: | --- | --- | --- |
{table}"""


def _files(story: Story) -> str:
    rows = "\n".join(
        f"| {name} | {entry['size']:,} | `{entry['sha256']}` |" for name, entry in sorted(story.files.items())
    )
    return f"## Checksums\n\n| file | bytes | sha256 |\n| --- | ---: | --- |\n{rows}"


def _find(story: Story, kind: str) -> Link | None:
    return next((link for link in story.chain if link.kind == kind), None)


def _below(markdown: str) -> str:
    """*markdown* without its first heading, the others two levels deeper, to stand inside a section."""
    lines = markdown.strip().splitlines()
    if lines and lines[0].startswith("# "):
        lines = lines[1:]
    return "\n".join(f"##{line}" if line.startswith("#") else line for line in lines).strip()


def _shown(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in sorted(options.items()) if value is not None]


def _flag(key: str) -> str:
    return key.replace("_", "-")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value(inner)}" for key, inner in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _literal(content: str) -> str:
    return '"' + content.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _range(interval: tuple[float, float]) -> str:
    return f"{_percent(interval[0])} to {_percent(interval[1])}"


def _short(digest: Any) -> str:
    return str(digest or "unknown")[:12]
