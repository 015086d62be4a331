"""``countdown-rl publish``: the release folder of a model, and its upload."""

from pathlib import Path

from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson, Out, with_options
from countdown_rl.formatting import interval, percent
from countdown_rl.hub.config import PublishOptions, UploadOptions


@with_options
def publish(
    *,
    options: PublishOptions,
    out: Out = Path("artifacts/release"),
    upload: UploadOptions,
    as_json: AsJson = False,
) -> None:
    """Build the release folder of a model, and upload it with --push.

    The folder holds weights, tokenizer, a model card with results and training curves, the evaluation, and the chain of
    manifests from the data to the weights. With --with-demo it also holds index.html, a page that runs GGUF weights
    in a browser, as a static Space shows it. The same artifacts and options give the same bytes.

    With --push the folder goes to the Hub as one commit, private unless --public, and other files in the repository are
    removed. The token is that of `hf auth login`, or HF_TOKEN.

    Examples:
        countdown-rl publish --eval artifacts/eval/quantized
        countdown-rl publish --push --repo-id me/countdown-tiny-nf4
        countdown-rl publish --model artifacts/gguf --with-demo --push \\
          --repo-id me/countdown-gguf
    """
    from countdown_rl.cli.upload import finish
    from countdown_rl.hub import release

    manifest = release.build(options, out)
    facts = manifest.facts
    if "accuracy" in facts:
        summary = f"accuracy {percent(facts['accuracy'])} ({interval(facts['interval'])}, n {facts['n']:,})"
    else:
        summary = "not evaluated"
        console.warn("these weights have not been evaluated, and the card says so; run `countdown-rl eval` on them.")
    finish(out, manifest, upload, summary=summary, as_json=as_json)
