"""The model card: what a release is, how it was measured, how it came to be, and how to run it.

Everything in it is read from manifests and measurements; nothing is written by hand for one model.
"""

from collections.abc import Mapping
from typing import Any

from countdown_rl.artifacts import MADE_BY, origin
from countdown_rl.formatting import below, checksums, flag, flags, interval, options_table, percent, short, table, value
from countdown_rl.hub import frontmatter, licenses, usage
from countdown_rl.hub.results import Measured
from countdown_rl.hub.story import Part, Story

_FOR = {
    "countdown": "the Countdown numbers puzzle (reach a target from given numbers with + − × ÷)",
    "gsm8k": "word problems of grade-school arithmetic (GSM8K)",
}


def text(story: Story) -> str:
    """The whole card: YAML front matter by huggingface_hub's own classes, then the page."""
    sections = [
        _opening(story),
        _purpose(story),
        _results(story),
        usage.section(story),
        _training(story),
        licenses.section(story.terms, story.base_model, story.files),
        _origin(story),
        "## Checksums\n\n" + checksums(story.files),
    ]
    page = "\n\n".join(section.strip() for section in sections)
    return f"---\n{frontmatter.metadata(story)}\n---\n\n{page}\n"


def _opening(story: Story) -> str:
    link = f"[{story.base_model}](https://huggingface.co/{story.base_model})"
    base = link if story.base_model else f"`{origin(story.chain).name}`"
    if story.find("adapter"):
        made = f"post-trained from {base} with GRPO, which rewards answers that an exact checker finds right"
    else:
        made = f"from {base}, trained on worked solutions of puzzles"
    said = (
        f"# {story.name}\n\nA language model for {_FOR[story.task]}, {made}. It was made and measured by "
        "`countdown-rl`, which wrote this page too."
    )
    if len(story.parts) == 1:
        return f"{said} This repository holds {story.form.title}."
    rows = [(part.form.title, f"`{part.path}`", *_scored(part)) for part in story.parts]
    return f"{said}\n\n{table(('what it holds', 'where', 'solved', '95% interval', 'n'), rows, right=(2, 3, 4))}"


def _scored(part: Part) -> tuple[str, str, str]:
    measured = part.measured
    if measured is None:
        return "not measured", "", ""
    return percent(measured.accuracy), interval(measured.interval), f"{measured.n:,}"


def _purpose(story: Story) -> str:
    return """## What it is for, and what it is not

For studying reinforcement learning with checkable rewards, and for solving puzzles of the kind it was measured on.
It is no general assistant and no calculator: it may be wrong with confidence, its reasoning need not be how it
found the answer, and outside puzzles like those below nothing was measured. Check every answer."""


def _results(story: Story) -> str:
    measured = story.measured
    if measured is None:
        return "## Results\n\nThese weights have not been measured."
    rows = [
        (title, percent(share), interval(ends), f"{n:,}")
        for title, share, n, ends in [
            ("all puzzles", measured.accuracy, measured.n, measured.interval),
            *measured.groups,
        ]
    ]
    parts = [
        "## Results",
        "Share of puzzles solved at the first try, on puzzles that training never saw.",
        table(("puzzles", "solved", "95% interval", "n"), rows, right=(1, 2, 3)),
        f"{_decoding(measured.decoding)} {percent(measured.format)} of the completions keep the format. An answer "
        f"counts only when it keeps the rules and equals the target in exact arithmetic. Puzzles: "
        f"`{measured.data['file']}`, sha256 `{short(measured.data['digest'])}`.",
        _again(story, measured),
    ]
    if story.comparison:
        parts.append("### What each step did\n\n" + below(story.comparison))
    return "\n\n".join(part for part in parts if part)


def _again(story: Story, measured: Measured) -> str:
    """The commands that measure it again, where the chain says how its puzzles were made."""
    for link in story.chain:
        split = next((name for name, file in link.files.items() if file["sha256"] == measured.data["digest"]), None)
        if link.kind == "data" and split:
            settings = {"limit": measured.n} | {key: what for key, what in measured.decoding.items() if key != "greedy"}
            return (
                f"To measure it again:\n\n```shell\n{MADE_BY['data']} --out data {flags(link.options)}\n"
                f"{MADE_BY['eval']} --model . --data data/{split} {flags(settings)}\n```"
            )
    return ""


def _decoding(settings: Mapping[str, Any]) -> str:
    if settings.get("greedy"):
        return f"Decoding is greedy, at most {settings['max_new_tokens']} tokens."
    return f"Decoding: {', '.join(f'{flag(key)} {value(what)}' for key, what in settings.items())}."


def _training(story: Story) -> str:
    parts = ["## How it was trained"]
    for link in story.chain:
        if link.kind not in ("model", "adapter") or not link.options:
            continue
        what = "GRPO with LoRA" if link.kind == "adapter" else "Supervised warm-up on search traces"
        parts.append(f"### {what} (`{MADE_BY[link.kind]}`)")
        parts.append(_course(link.facts))
        if link.kind == "adapter" and story.curves:
            parts.append(f"![Reward, share solved, length and entropy by training step]({story.curves})")
        parts.append(options_table(link.options))
        versions = ", ".join(f"{name} {version}" for name, version in sorted(link.versions.items()))
        if versions:
            parts.append(f"With {versions}.")
    if len(parts) == 1:
        parts.append("Its manifest chain does not say.")
    merged = story.find("merged")
    agreement = merged.facts.get("agreement", {}).get("with_policy_as_trained") if merged else None
    if agreement:
        parts.append(
            "Merging was checked against the policy as trained, on puzzles of its own: KL "
            f"{agreement['kl']:.2g}, and the same likeliest token at {percent(agreement['greedy'])} of "
            f"{agreement['positions']:,.0f} places."
        )
    return "\n\n".join(part for part in parts if part)


def _course(facts: Mapping[str, Any]) -> str:
    """One sentence on how training went, as far as its manifest says."""
    if not {"correct_last_tenth", "trainable_parameters", "total_parameters", "steps"} <= facts.keys():
        return ""
    return (
        f"{facts['steps']:,} steps on {facts['trainable_parameters']:,} of {facts['total_parameters']:,} parameters; "
        f"over the last tenth of them {percent(facts['correct_last_tenth'])} of the sampled answers were right."
    )


def _origin(story: Story) -> str:
    rows = [
        (
            str(number),
            link.name,
            f"`{MADE_BY[link.kind]}`" if link.kind in MADE_BY else link.kind,
            f"`{short(link.digest)}`",
        )
        for number, link in enumerate(story.chain, 1)
    ]
    steps = table(("", "what", "made by", "digest"), rows, right=(0,))
    return (
        "## Where it comes from\n\nEach step's manifest, with all its options and the digest of what it was made "
        f"from, is in [manifest.json](manifest.json).\n\n{steps}"
    )
