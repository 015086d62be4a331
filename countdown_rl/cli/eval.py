from pathlib import Path
from typing import Annotated

from rich.table import Table

from countdown_rl.cli import console, parameters
from countdown_rl.cli.parameters import option
from countdown_rl.core import artifacts
from countdown_rl.core.formatting import interval, percent, plural
from countdown_rl.core.processes import is_main
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.sample import Metrics
from countdown_rl.tasks.registry import task


def eval(
    *,
    model: parameters.Model = "artifacts/adapter",
    trust_remote_code: parameters.TrustRemoteCode = False,
    completions: Annotated[
        Path | None, option("Grade this file of completions; no model runs.", metavar="FILE")
    ] = None,
    data: Annotated[
        Path | None,
        option(
            "Data directory, or a JSONL, JSON, CSV or Parquet file.",
            show_default="artifacts/data/test.jsonl",
        ),
    ] = None,
    out: Annotated[
        Path | None, option("Directory to write.", show_default="artifacts/eval/<end of --model>")
    ] = None,
    overwrite: parameters.Overwrite = False,
    options: EvalOptions,
) -> None:
    """Evaluate a model on held-out puzzles.

    Greedy by default. Every completion is kept with its grade. If the command is interrupted, run
    it again to resume. With --engine openai a server generates the completions, and --model is the
    name of the model on that server. The models random and solver are baselines: the lower and the
    upper bound.

    --completions grades completions of another program: rows with `completion`, or a file of TRL,
    verl, verifiers, Inspect, lm-evaluation-harness, vLLM or an OpenAI batch. A record identifies
    its puzzle by its fields, its id or its prompt; ids need --data.

    Examples:
        countdown-rl eval --model artifacts/adapter --data artifacts/data/test.jsonl
        countdown-rl eval --completions rollouts.jsonl --data artifacts/data
        countdown-rl eval --temperature 0.8 --samples 16 --out artifacts/sampled
        countdown-rl eval --model NAME --engine openai \\
          --base-url http://127.0.0.1:8000/v1
    """
    from countdown_rl.evaluation import evaluate
    from countdown_rl.evaluation.caveats import of_evaluation

    if completions:
        source = completions.with_suffix("")
    else:
        source = Path(model)
        data = data or Path("artifacts/data/test.jsonl")
    out = out or evaluate.default_out(source)
    with artifacts.locked(*[out] * is_main()), console.progress("completions") as update:
        result = evaluate.evaluate(
            options,
            model=model,
            trust_remote_code=trust_remote_code,
            completions=completions,
            data=data,
            out=out,
            overwrite=overwrite,
            on_batch=update,
            on_warning=console.warn,
            on_note=console.note,
        )
    for sentence in of_evaluation(result):
        console.warn(sentence)
    console.result({"out": str(out)} | result.metrics.to_json(), _view(str(out), result.metrics))
    console.done(f"Results are in {out}.", f"countdown-rl samples {out} --errors")


def _view(out: str, metrics: Metrics) -> Table:
    from countdown_rl.evaluation import results

    table = console.table(
        "", "solved", "95% interval", "n", title=f"{metrics.model.source} → {out}"
    )

    n = f"{metrics.n:,}"
    if metrics.of:
        n += f" of {metrics.of:,}"
    name = "pass@1" if metrics.pass_at else "all"
    table.add_row(name, percent(metrics.accuracy), interval(metrics.interval), n, style="bold")
    shares = {f"pass@{k}": passed for k, passed in metrics.pass_at.items() if k != 1}
    if metrics.majority:
        shares["majority vote"] = metrics.majority
    for name, share in shares.items():
        table.add_row(name, percent(share.share), interval(share.interval), n)
    last = ""
    for title, kind, solved in results.breakdowns(metrics):
        if solved.n == metrics.n:  # the only kind
            continue
        if title != last:
            table.add_row()
        last = title
        table.add_row(kind, percent(solved.accuracy), interval(solved.interval), f"{solved.n:,}")
    table.caption = "\n".join(_caption(metrics))
    return table


def _caption(metrics: Metrics) -> list[str]:
    lines = []
    tokens = metrics.tokens
    if metrics.precision and tokens:  # baselines have no tokens
        length = f"{metrics.mean_tokens:.0f} tokens per completion (p95 {tokens.p95:,})"
        if tokens.per_correct_answer is not None:
            length += f", {tokens.per_correct_answer:,.0f} per correct answer"
        lines = [
            f"format {metrics.format:.1%}, truncated {metrics.truncated:.1%}",
            length,
            f"computed by {metrics.engine}, weights: {metrics.precision} ({metrics.path})",
        ]
    if not metrics.is_baseline:
        trained = "not known"
        if metrics.overlap is not None:
            trained = f"{metrics.overlap.trained:,}"
        lines.append(f"{task(metrics.task).noun}s that were trained on: {trained}")
    if endpoint := metrics.endpoint:
        written = plural(endpoint["completion_tokens"], "completion token")
        lines.append(f"{plural(endpoint['prompt_tokens'], 'prompt token')}, {written}")
    if metrics.reasons:
        lines.append("incorrect:")
    for reason, count in list(metrics.reasons.items())[:4]:
        lines.append(f"{count:7,}  {task(metrics.task).reason(reason)}")
    return lines
