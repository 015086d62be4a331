"""``countdown-rl eval``: accuracy of a model on held-out puzzles."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson, Data, Out, Revision, TrustRemoteCode, with_options
from countdown_rl.evaluation.config import EvalOptions

#: The k of pass@k that the table shows beside the last, and how many reasons it names.
POWERS = (1, 2, 4, 8, 16, 32, 64)
REASONS = 4


@with_options
def eval_(
    *,
    model: Annotated[
        str,
        typer.Option(
            help="Name of the shipped model, adapter, merged or quantized directory, GGUF file or Hub id; "
            "random and solver are the lower and upper bounds."
        ),
    ] = "artifacts/adapter",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    data: Data = Path("artifacts/data/test.jsonl"),
    out: Out = Path("artifacts/eval/adapter"),
    options: EvalOptions,
    as_json: AsJson = False,
) -> None:
    """Score a model on held-out puzzles.

    Greedy unless a temperature is given. Every completion is kept with its grade. What the model is (base,
    adapter, merged, 4-bit) it sees for itself. A run that was stopped continues when run again.

    Larger puzzles than it was trained on are data of their own, as the last two examples have it: 200 of 5 and 6
    numbers, no set of which is in any training data. So is GSM8K (`gen-data --task gsm8k`).

    **Examples**

    `countdown-rl eval --model artifacts/adapter --data artifacts/data/test.jsonl --out artifacts/eval/adapter`

    `countdown-rl eval --model countdown-tiny --limit 200 --out artifacts/eval/base`

    `countdown-rl eval --model random --out artifacts/eval/random`

    `countdown-rl eval --temperature 0.8 --samples 16 --out artifacts/eval/sampled`

    `countdown-rl gen-data --size 5 --size 6 --n 2000 --test 200 --out artifacts/larger`

    `countdown-rl eval --data artifacts/larger/test.jsonl --out artifacts/eval-larger/adapter`
    """
    from countdown_rl.evaluation import evaluate

    with console.solving() as advance:
        result = evaluate.evaluate(
            options,
            model=model,
            revision=revision,
            data=data,
            out=out,
            trust_remote_code=trust_remote_code,
            on_batch=advance,
        )
    if result.note:
        console.note(result.note)
    console.result({"out": str(out)} | result.metrics, as_json=as_json, view=_view(str(out), result.metrics))


def _view(out: str, metrics: dict[str, Any]) -> Table:
    table = Table(title=f"{metrics['model']['source']} → {out}", title_justify="left", box=None, pad_edge=False)
    for name in ("", "solved", "95% interval", "n"):
        table.add_column(name, justify="right" if name else "left")

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
    table.caption_justify = "left"
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
