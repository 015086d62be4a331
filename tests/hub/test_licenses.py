"""The licence of a release: where it is read, its text, and what it requires."""

import dataclasses
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from countdown_rl.errors import HubError, UsageError
from countdown_rl.hub import licenses, release
from countdown_rl.hub.config import PublishOptions

ROOT = Path(__file__).parents[2]
OUT = Path("release")


def build(**options):
    return release.build(PublishOptions(model="merged", **options), OUT)


def base_on_hub(hub, folder: Path, metadata: str) -> None:
    folder.mkdir()
    (folder / "README.md").write_text(f"---\n{metadata}\n---\n")
    hub.add_model("some/base", folder)


def test_the_text_of_the_licence_is_in_the_release(root):
    build(license="apache-2.0")
    assert Path("release/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert "[text](LICENSE)" in ModelCard.load(OUT / "README.md").text
    build(license="mit")
    assert not Path("release/LICENSE").exists()
    Path("terms.txt").write_text("Do as you like.\n")
    build(license="mit", license_file="terms.txt")
    assert Path("release/LICENSE").read_text() == "Do as you like.\n"
    with pytest.raises(UsageError, match="--license-file"):
        build(license_file="gone.txt")


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("license: apache-2.0", {"license": "apache-2.0"}),
        ("license: llama3.1", {"license": "llama3.1"}),
        (
            "license: other\nlicense_name: qwen-research\nlicense_link: https://x/LICENSE",
            {"license": "other", "license_name": "qwen-research", "license_link": "https://x/LICENSE"},
        ),
        ("tags: [x]", {"license": None}),
    ],
)
def test_the_licence_is_read_from_the_card_of_the_base(hub, tmp_path, metadata, expected):
    base_on_hub(hub, tmp_path / "base", metadata)
    assert licenses.resolve(None, None, "some/base", None).metadata == expected


def test_a_base_that_is_not_on_the_hub_has_no_known_licence(hub):
    assert licenses.resolve(None, None, "some/base", None) == licenses.License()


def test_a_given_licence_asks_nobody(hub):
    assert licenses.resolve("mit", None, "some/base", None).id == "mit"
    assert licenses.resolve("qwen-research", None, None, None).metadata["license"] == "other"
    assert not hub.log


def test_a_card_that_cannot_be_read_asks_for_the_licence(hub):
    hub.fail("GET", status=500, times=100)
    with pytest.raises(HubError, match="--license"):
        licenses.resolve(None, None, "some/base", None)


def test_a_base_of_this_package_gives_its_licence(root):
    assert build().facts["license"] == "apache-2.0"


def test_a_licence_with_requirements_is_met_or_not_uploaded(hub, root):
    base_on_hub(hub, Path("card"), "license: llama3.1")
    options = PublishOptions(model="merged", base_model="some/base")

    def check(**more):
        release.check_uploadable(release.build(dataclasses.replace(options, **more), OUT), unmeasured=True)

    with pytest.raises(HubError, match="--license-file"):
        check()
    Path("terms.txt").write_text("LLAMA 3.1 COMMUNITY LICENSE AGREEMENT\n")
    with pytest.raises(HubError, match="begins with Llama"):
        check(license_file="terms.txt")
    check(license_file="terms.txt", name="Llama-3.1-8B-countdown")
    card = ModelCard.load(OUT / "README.md")
    assert card.data.license == "llama3.1"
    assert "Built with Llama" in card.text
    assert "Copyright © Meta Platforms" in Path("release/NOTICE").read_text()
