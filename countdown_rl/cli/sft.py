"""``countdown-rl sft``: supervised fine-tuning on search traces."""

from pathlib import Path
from typing import Annotated

from countdown_rl import artifacts
from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson, Out, option, with_options
from countdown_rl.sft.config import SftOptions


@with_options
def sft(
    *,
    data: Annotated[Path, option("Data directory of gen-data.")] = Path("artifacts/data"),
    out: Out = Path("artifacts/sft"),
    options: SftOptions,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a model on search traces.

    Supervised training of all weights. Without --model a small Llama and its tokenizer are created; countdown-tiny
    was made this way.

    Examples:
        countdown-rl sft --data artifacts/data --out artifacts/sft
        countdown-rl sft --model artifacts/sft --out artifacts/sft-2
        countdown-rl sft --model SmolLM2-135M-Instruct.Q4_1.gguf --optimizer adamw
    """
    from countdown_rl.sft import train as training

    with artifacts.locked(out), console.progress("training") as update:
        facts = training.make(
            options, data=data, out=out, on_step=lambda step, total, loss: update(step, total, f"loss {loss:.3f}")
        )
    console.note(f"Wrote {out}: {facts['parameters']:,} parameters, loss {facts['loss']:.3f} nats per token.")
    console.result({"out": str(out)} | facts, as_json=as_json)
