"""``python -m stages.recipes.tiny``: pretrain the shipped model from nothing."""

from pathlib import Path
from typing import Annotated

from countdown_rl.cli import console, main
from countdown_rl.cli.help import as_command
from countdown_rl.cli.parameters import AsJson, Out, option, with_options
from countdown_rl.core import artifacts
from stages.recipes.tiny.config import PretrainOptions


@with_options
def pretrain(
    *,
    data: Annotated[Path, option("Data directory of gen-data.")] = Path("artifacts/data"),
    out: Out = Path("artifacts/model"),
    model: Annotated[str, option("Model of this command to train further, in its own shape.")] = "",
    options: PretrainOptions,
    as_json: AsJson = False,
) -> None:
    """Create a small Llama and its tokenizer, and pretrain it on search traces, as countdown-tiny was."""
    from stages.recipes.tiny import pretrain as training

    with artifacts.locked(out), console.progress("training") as update:
        facts = training.make(
            options,
            data=data,
            model=model,
            out=out,
            on_step=lambda step, total, loss: update(step, total, f"loss {loss:.3f}"),
        )
    console.note(f"Wrote {out}: {facts['parameters']:,} parameters, loss {facts['loss']:.3f} nats per token.")
    console.result({"out": str(out)} | facts, as_json=as_json)


if __name__ == "__main__":
    main.main(as_command("python -m stages.recipes.tiny", pretrain))
