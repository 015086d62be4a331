from pathlib import Path
from typing import Annotated

from countdown_rl.cli import console
from countdown_rl.cli.parameters import BaseModel, Out, option
from countdown_rl.core import artifacts
from countdown_rl.core.formatting import plural
from countdown_rl.export.config import MergeOptions


def merge(
    *,
    adapter: Annotated[
        str, option("Adapter of train, or another LoRA adapter of PEFT.")
    ] = "artifacts/adapter",
    base_model: BaseModel = None,
    out: Out = Path("artifacts/merged"),
    options: MergeOptions,
) -> None:
    """Merge a LoRA adapter into its base, as ordinary safetensors.

    An adapter trained over NF4 weights (QLoRA) has two possible bases: the original full-precision
    weights, or the values that NF4 gave them in training (dequantized). Choose by the next step:

    - for quantize --format nf4: original. Re-quantizing it nearly recovers the weights used in
    training. From dequantized, NF4 would round the adapter away, and quantize refuses.

    - for bf16 or GGUF: dequantized, the trained policy up to one rounding.

    PEFT merges with the whole model in memory. A result whose logits differ from those of the
    adapter over the same base is refused.

    Examples:
        countdown-rl merge --adapter artifacts/adapter --out artifacts/merged
        countdown-rl merge --base dequantized --out artifacts/bf16
    """
    from countdown_rl.models import reference

    artifacts.check_writable(
        out, "merged"
    )  # this and the model are checked before torch is imported
    ref = reference.find_model(adapter, base_model=base_model)
    from countdown_rl.export import agreement
    from countdown_rl.export.merge import merge_adapter

    console.note(f"Merging {adapter} ...")
    facts = merge_adapter(ref, out, options).facts
    if facts.get("changes_nothing"):
        console.warn(
            f"{adapter} changes nothing: its weights are zero. {out} holds the base alone."
        )
    lines = [
        f"{plural(facts['parameters'], 'parameter')}, {facts['bytes'] / 1e6:,.1f} MB, "
        f"{plural(facts['adapted_modules'], 'module')} merged into the {facts['base']} base"
    ]
    policy = facts["agreement"]["with_policy_as_trained"]
    definition = facts["agreement"]["with_definition"]
    if policy != definition:
        lines += agreement.described("the policy as trained", policy)
    lines += agreement.described("the adapter over that base", definition)
    console.result({"out": str(out), **facts}, "\n".join(lines))
    console.done(f"Wrote {out}.", f"countdown-rl quantize --model {out}")
