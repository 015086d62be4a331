"""``countdown-rl merge``: an adapter merged into its base."""

from pathlib import Path
from typing import Annotated

import typer

from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson, Out, Revision, with_options
from countdown_rl.export.config import MergeOptions


@with_options
def merge(
    *,
    adapter: Annotated[
        str, typer.Option(help="Adapter of train, or another LoRA adapter of PEFT.")
    ] = "artifacts/adapter",
    revision: Revision = None,
    out: Out = Path("artifacts/merged"),
    options: MergeOptions,
    as_json: AsJson = False,
) -> None:
    """Fold a LoRA adapter into its base, as ordinary safetensors.

    **Which base.** An adapter trained over 4-bit NF4 weights (QLoRA) can go into two: the *original*
    full-precision weights, or the values that NF4 gave them in training, *dequantized*. What suits depends on
    where the weights go next:

    - to `quantize --format nf4`: `original`. The new rounding is then nearly the one the adapter was trained
      with. From `dequantized`, NF4 rounds the adapter away, and `quantize` refuses.

    - to be run in bf16, or to GGUF: `dequantized`, which is the trained policy but for one rounding.

    The weights are written a tensor at a time, so a model larger than memory can be merged with
    `--verify none`. A result whose logits are not those of the adapter over that same base is not kept.

    **Examples**

    `countdown-rl merge --adapter artifacts/adapter --out artifacts/merged`

    `countdown-rl merge --base dequantized --verify full --out artifacts/merged-bf16`
    """
    from countdown_rl.export import merge as merging
    from countdown_rl.models import load, reference

    load.quiet()
    ref = reference.resolve(adapter, revision=revision)
    manifest = merging.merge(ref, out, options)
    console.result({"out": str(out), **manifest.facts}, as_json=as_json, view=_view(out, manifest.facts))


def _view(out: Path, facts: dict) -> str:
    lines = [
        f"{out}: {facts['parameters']:,} parameters, {facts['bytes'] / 1e6:,.1f} MB, "
        f"{facts['adapted_modules']} modules merged into the {facts['base']} base"
    ]
    for name, what in (
        ("with_definition", "the adapter over that base"),
        ("with_policy_as_trained", "the policy as trained"),
    ):
        if "agreement" in facts:
            one = facts["agreement"][name]
            lines.append(
                f"  against {what}: same choice at {100 * one['greedy']:.1f}% of {one['positions']:.0f} tokens, "
                f"KL {one['kl']:.2g}, largest logit difference {one['max_logit_difference']:.2g}"
            )
    return "\n".join(lines)
