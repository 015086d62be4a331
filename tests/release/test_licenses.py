"""The licence of a release: given, or that of its base."""

from pathlib import Path

import pytest

from countdown_rl.core.errors import HubError, UsageError
from countdown_rl.release import folder
from countdown_rl.release.config import PublishOptions


def base_on_hub(hub, folder: Path, metadata: str) -> None:
    folder.mkdir()
    (folder / "README.md").write_text(f"---\n{metadata}\n---\n")
    hub.add_model("some/base", folder)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("license: apache-2.0", {"license": "apache-2.0"}),
        ("license: llama3.1", {"license": "llama3.1"}),
        (
            "license: other\nlicense_name: qwen-research\nlicense_link: https://x/LICENSE",
            {"license": "other", "license_name": "qwen-research", "license_link": "https://x/LICENSE"},
        ),
        ("tags: [x]", {}),
    ],
)
def test_the_licence_is_read_from_the_card_of_the_base(hub, tmp_path, metadata, expected):
    base_on_hub(hub, tmp_path / "base", metadata)
    assert folder.base_license("some/base", None) == expected


def test_a_base_that_is_not_on_the_hub_has_no_known_licence(hub):
    assert folder.base_license("some/base", None) == {}


def test_a_given_licence_asks_nobody(hub, root):
    manifest = folder.build(PublishOptions(model="merged", base_model="some/base", license="mit"), Path("release"))
    assert (manifest.facts["license"], hub.log) == ("mit", [])


@pytest.mark.parametrize("status", [500, 200])
def test_a_card_that_cannot_be_read_asks_for_the_licence(hub, status):
    hub.fail("GET", status=status, times=100)  # with 200, an answer that makes no sense
    with pytest.raises(HubError, match="--license"):
        folder.base_license("some/base", None)


def test_a_base_of_this_package_gives_its_licence(root):
    assert folder.build(PublishOptions(model="merged"), Path("release")).facts["license"] == "apache-2.0"


def test_the_text_of_a_licence_is_added(root):
    Path("terms.txt").write_text("Do as you like.\n")
    folder.build(PublishOptions(model="merged", license="mit", license_file="terms.txt"), Path("release"))
    assert Path("release/LICENSE").read_text() == "Do as you like.\n"
    with pytest.raises(UsageError, match="--license-file"):
        PublishOptions(license_file="gone.txt")
