"""``countdown-rl publish``: the release folder of a model, and its upload."""

from pathlib import Path
from typing import Annotated

from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson, Out, with_options
from countdown_rl.errors import UsageError
from countdown_rl.hub.config import HUB, PublishOptions, UploadOptions
from countdown_rl.options import option


@with_options
def publish(
    *,
    options: PublishOptions,
    out: Out = Path("artifacts/release"),
    upload: UploadOptions,
    unmeasured: Annotated[bool, option("Upload weights without an evaluation.", HUB, name="--unmeasured")] = False,
    as_json: AsJson = False,
) -> None:
    """Build the release folder of a model, and upload it with --push.

    The folder holds weights, tokenizer, a model card with results, training curves and checksums, and the
    chain of manifests from the data to the weights. With --also it holds the same model in other formats, each in
    its own subfolder; with --with-demo also index.html, a page that runs the GGUF weights in a browser, as a static
    Space shows it. The same artifacts give the same bytes.

    With --push the folder goes to the Hub as one commit, private unless --public, and other files in the repository are
    removed. The token is that of `hf auth login`, or HF_TOKEN.

    Examples:
        countdown-rl publish --eval artifacts/eval/quantized
        countdown-rl publish --push --repo-id me/countdown-tiny-nf4
        countdown-rl publish --model artifacts/merged --also artifacts/gguf \\
          --with-demo --push --repo-id me/countdown
    """
    if unmeasured and not upload.push:
        raise UsageError("--unmeasured goes with --push; add it.")
    from countdown_rl.cli.upload import finish
    from countdown_rl.hub import release

    manifest = release.build(options, out)
    if upload.push:
        release.check_uploadable(manifest, unmeasured=unmeasured)
    facts = manifest.facts
    if "accuracy" in facts:
        low, high = facts["interval"]
        summary = f"accuracy {facts['accuracy']:.1%} ({low:.1%} to {high:.1%}, n {facts['n']:,})"
    else:
        summary = "not evaluated"
        console.warn("these weights have not been evaluated, and the card says so; run `countdown-rl eval` on them.")
    finish(out, manifest, upload, summary=summary, as_json=as_json)
