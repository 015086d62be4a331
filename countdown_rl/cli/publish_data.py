"""``countdown-rl publish-data``: the release folder of a data set, and its upload."""

from pathlib import Path

from countdown_rl.cli.parameters import AsJson, Out, with_options
from countdown_rl.hub.config import PublishDataOptions, UploadOptions


@with_options
def publish_data(
    *,
    options: PublishDataOptions,
    out: Out = Path("artifacts/data-release"),
    upload: UploadOptions,
    as_json: AsJson = False,
) -> None:
    """Build the release folder of a data set, and upload it with --push.

    The folder holds the splits as they are, and a card with counts and checksums from which `load_dataset` reads
    them. The upload is that of `publish`: one commit, private unless --public.

    Examples:
        countdown-rl publish-data --data artifacts/data --license cc0-1.0
        countdown-rl publish-data --license cc0-1.0 --push --repo-id me/puzzles
    """
    from countdown_rl.cli.upload import finish
    from countdown_rl.hub import dataset_card

    manifest = dataset_card.build(options, out)
    finish(out, manifest, upload, summary=f"{sum(manifest.facts['rows'].values()):,} rows", as_json=as_json)
