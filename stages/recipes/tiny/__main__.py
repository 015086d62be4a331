"""``python -m stages.recipes.tiny``: create a small Llama and its tokenizer, and pretrain it on
search traces.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from countdown_rl.core import artifacts
from countdown_rl.core.errors import CountdownError
from countdown_rl.core.formatting import flag
from countdown_rl.core.options import field_hints
from stages.recipes.tiny.config import PretrainOptions

#: Steps after which progress is printed.
_EVERY = 50


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m stages.recipes.tiny", description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=Path("artifacts/data"), help="Data directory of gen-data."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("artifacts/model"), help="Directory to write."
    )
    parser.add_argument(
        "--model", default="", help="Model of this command to train further, in its own shape."
    )
    parser.add_argument("--json", action="store_true", help="Print the facts as a JSON object.")
    hints = field_hints(PretrainOptions)
    for field in fields(PretrainOptions):
        kind = {"action": "store_true"} if field.default is False else {"type": type(field.default)}
        help = f"{hints[field.name].__metadata__[0].help} ({field.default})"
        parser.add_argument(flag(field.name), default=field.default, help=help, **kind)
    given = vars(parser.parse_args(words))
    data, out, model, as_json = (given.pop(name) for name in ("data", "out", "model", "json"))
    try:
        options = PretrainOptions(**given)
        from stages.recipes.tiny import pretrain  # which loads torch

        with artifacts.locked(out):
            facts = pretrain.make(options, data=data, model=model, out=out, on_step=_print)
    except CountdownError as error:
        sys.exit(f"error: {error}")
    size = f"{facts['parameters']:,} parameters"
    print(f"Wrote {out}: {size}, loss {facts['loss']:.3f} nats per token.", file=sys.stderr)
    if as_json:
        print(json.dumps({"out": str(out)} | facts))


def _print(step: int, total: int, loss: float) -> None:
    if step % _EVERY == 0 or step == total:
        print(f"step {step:,} of {total:,}, loss {loss:.3f}", file=sys.stderr)


if __name__ == "__main__":
    main()
