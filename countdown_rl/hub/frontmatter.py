"""What the Hub reads of a release: the card's YAML, and the scores in the two forms that it knows.

``model-index`` in the card takes any data set and is read everywhere. The newer ``.eval_results/*.yaml``
(https://huggingface.co/docs/hub/eval-results) needs a data set on the Hub, and is shown on the leaderboard of one
that is registered as a benchmark; so it is written where such a data set is named.
"""

from typing import TYPE_CHECKING, Any

from countdown_rl.errors import ArtifactError
from countdown_rl.hub.results import Measured
from countdown_rl.hub.story import Story

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

_TITLES = {"countdown": "Countdown numbers puzzle, held-out puzzles", "gsm8k": "GSM8K"}


def metadata(story: Story) -> str:
    """The card's YAML: where the model comes from, what it is for, how it scores."""
    from huggingface_hub import ModelCardData

    tags = ["countdown-rl", "reasoning", story.task]
    if story.find("adapter"):
        tags += ["grpo", "reinforcement-learning", "lora"]
    for part in story.parts:
        tags += [tag for tag in part.form.tags if tag not in tags]
    data = ModelCardData(
        base_model=story.base_model,
        base_model_relation=story.base_relation if story.base_model else None,
        datasets=list(story.datasets) or None,
        language="en",
        library_name=story.form.library,
        metrics=["accuracy"] if story.measured else None,
        model_name=story.name,
        pipeline_tag="text-generation",
        tags=tags,
        eval_results=_index(story) or None,
        **story.terms.metadata,  # type: ignore[arg-type]
    )
    return str(data.to_yaml())


def _index(story: Story) -> list["EvalResult"]:
    from huggingface_hub import EvalResult

    measured = story.measured
    if measured is None:
        return []

    def result(title: str | None, accuracy: float, n: int, interval: tuple[float, float]) -> EvalResult:
        return EvalResult(
            task_type="text-generation",
            task_name="Text generation",
            dataset_type=story.measured_on or measured.task,
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


def check(page: str, repo_type: str = "model") -> None:
    """Have huggingface_hub read the card's YAML back as it will be read, before any of it goes anywhere.

    The Hub's own check (:meth:`huggingface_hub.RepoCard.validate`) needs the network, and is made by the upload.

    Raises:
        ArtifactError: it is not what was meant.
    """
    from huggingface_hub import DatasetCard, ModelCard

    try:
        data = (ModelCard if repo_type == "model" else DatasetCard)(page).data
        again = page.startswith(f"---\n{data.to_yaml()}\n---\n")
    except ValueError as error:
        raise ArtifactError(f"the card's metadata cannot be read back: {' '.join(str(error).split())}.") from error
    if not again:
        raise ArtifactError("the card's metadata does not read back as it was written; give plainer names.")


def scores(story: Story) -> tuple[str, str] | None:
    """The name of the file of scores and its text, or None without a data set on the Hub to name."""
    from huggingface_hub import EvalResultEntry, constants, eval_result_entries_to_yaml
    from huggingface_hub.utils import yaml_dump

    if story.measured is None or story.measured_on is None:
        return None
    entry = EvalResultEntry(
        dataset_id=story.measured_on,
        task_id=story.measured.task,
        value=round(100 * story.measured.accuracy, 2),
        notes=_setup(story.measured),
    )
    entries: list[dict[str, Any]] = eval_result_entries_to_yaml([entry])
    return f"{constants.EVAL_RESULTS_FOLDER}/{story.measured.task}.yaml", str(yaml_dump(entries))


def _setup(measured: Measured) -> str:
    low, high = measured.interval
    how = "greedy" if measured.decoding.get("greedy") else f"temperature {measured.decoding.get('temperature'):g}"
    return (
        f"% solved at the first try, {how}, at most {measured.decoding['max_new_tokens']} tokens, n {measured.n}, "
        f"95% interval {100 * low:.1f} to {100 * high:.1f}"
    )
