"""``countdown-rl eval``: accuracy of a model on held-out puzzles."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson, Data, Model, Revision, TrustRemoteCode, with_options
from countdown_rl.evaluation.config import EvalOptions

#: The k of pass@k that the table shows beside the last, and how many reasons it names.
POWERS = (1, 2, 4, 8, 16, 32, 64)
REASONS = 4


@with_options
def eval(
    *,
    model: Model = "artifacts/adapter",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    data: Data = Path("artifacts/data/test.jsonl"),
    out: Annotated[
        Path | None, typer.Option(help="Directory to write.", show_default="artifacts/eval/<last part of --model>")
    ] = None,
    options: EvalOptions,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on held-out puzzles.

    Greedy by default. Every completion is kept with its grade. An interrupted run continues when the same command is
    run again. The models random and solver are the lower and upper bounds. Puzzles larger than those of training, or
    GSM8K problems, are data sets of their own, as below.

    Examples:
        countdown-rl eval --model artifacts/adapter --data artifacts/data/test.jsonl
        countdown-rl eval --model countdown-tiny --limit 200
        countdown-rl eval --model random
        countdown-rl eval --temperature 0.8 --samples 16 --out artifacts/eval/sampled
        countdown-rl gen-data --size 5 --size 6 --n 2000 --test 200 --out artifacts/larger
        countdown-rl eval --data artifacts/larger/test.jsonl --out artifacts/eval-larger
    """
    from countdown_rl.evaluation import evaluate

    out = out or default_out(model)
    with console.progress("solving") as update:
        result = evaluate.evaluate(
            options,
            model=model,
            revision=revision,
            data=data,
            out=out,
            trust_remote_code=trust_remote_code,
            on_batch=with_rate(update),
        )
    if result.note:
        console.note(result.note)
    console.result({"out": str(out)} | result.metrics, as_json=as_json, view=_view(str(out), result.metrics))


def default_out(model: str) -> Path:
    """Return the directory for the evaluation of *model*: named by its last path component or Hub name."""
    path = Path(model)
    name = path.resolve().name if path.exists() else path.name
    return Path("artifacts/eval", name.removesuffix(".gguf") or "model")


def with_rate(update: Callable[[int, int, str], None]) -> Callable[[int, int, int], None]:
    """Return a callback for (done, total, solved) that adds the share solved and the puzzles per second.

    Puzzles done at the first call come from an interrupted run and do not count for the rate.
    """
    start: tuple[float, int] | None = None

    def advance(done: int, total: int, solved: int) -> None:
        nonlocal start
        now = time.monotonic()
        start = start or (now, done)
        detail = f"{solved / done:.1%} solved" if done else ""
        if done > start[1]:
            detail += f", {(done - start[1]) / (now - start[0]):.0f}/s"
        update(done, total, detail)

    return advance


def _view(out: str, metrics: dict[str, Any]) -> Table:
    heads = ("", "solved", "95% interval", "n")
    table = console.table(*heads, title=f"{metrics['model']['source']} → {out}")

    def row(name: str, share: dict[str, Any], style: str = "") -> None:
        low, high = share["interval"]
        solved = share.get("share", share.get("accuracy"))
        table.add_row(
            name, f"{solved:.1%}", f"{low:.1%} to {high:.1%}", f"{share.get('n', metrics['n']):,}", style=style
        )

    def kinds(key: str, name: Callable[[str], str]) -> None:
        if shares := metrics.get(key):
            table.add_row()
        for kind, share in (shares or {}).items():
            row(name(kind), share)

    row("all", metrics, "bold")
    passes = metrics.get("pass_at", {})
    for k, share in passes.items():
        if k in (*map(str, POWERS), str(len(passes))):
            row(f"pass@{k}", share)
    if "majority" in metrics:
        row("majority vote", metrics["majority"])
    kinds("by_size", lambda size: f"{size} numbers")
    kinds("by_needs", lambda needs: {"add-sub": "+ - suffice", "mul-div": "needs * or /"}.get(needs, needs))
    kinds("by_solutions", lambda many: f"{many} solution{'' if many == '1' else 's'}")
    refusals = [key for key in ("impossible", "wrong_refusals") if metrics.get(key, {}).get("n")]
    if "impossible" in refusals or metrics["reasons"].get("not-impossible"):
        table.add_row()
        for key in refusals:
            row({"impossible": "impossible, and said so", "wrong_refusals": "possible, refused"}[key], metrics[key])
    table.caption = "\n".join(_aside(metrics))
    return table


def _aside(metrics: dict[str, Any]) -> list[str]:
    lines, tokens = [], metrics["tokens"]
    if "precision" in metrics:  # a floor or a ceiling writes nothing in tokens
        lines = [
            f"format {metrics['format']:.1%}, {metrics['truncated']:.1%} cut short",
            f"{metrics['mean_tokens']:.0f} tokens a completion, 19 of 20 within {tokens['p95']:,}",
        ]
    if lines and tokens["per_right_answer"] is not None:
        lines[-1] += f", {tokens['per_right_answer']:,.0f} for each right answer"
    if "draws" in metrics:
        draws = metrics["draws"]
        lines.append(f"one draw of all puzzles solves {draws['lowest']:.1%} to {draws['highest']:.1%}")
    if metrics["reasons"]:
        most = list(metrics["reasons"].items())[:REASONS]
        lines.append("refused: " + ", ".join(f"{reason} {count:,}" for reason, count in most))
    return lines
