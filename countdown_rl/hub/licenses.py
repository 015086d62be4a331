"""Licence of a release: its id on the Hub, its text, and what licences of common base models require."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl.artifacts import Manifest
from countdown_rl.errors import HubError, UsageError

LICENSE, NOTICE = "LICENSE", "NOTICE"

#: Licence texts that come with the package.
_TEXTS = Path(__file__).parents[1] / "assets" / "licenses"


@dataclass(frozen=True)
class Requirements:
    """Requirements of a licence on those who share weights made under it.

    ``statement`` is for the card, ``notice`` for the NOTICE file, and the model's name begins with ``prefix``. The
    licence's text, at ``url`` if there is one, has to go with the weights.
    """

    statement: str = ""
    notice: str = ""
    prefix: str = ""
    url: str = ""


_QWEN = Requirements(
    statement="Built with Qwen. The licence allows research and evaluation only, not commercial use, and requires its "
    "text beside the weights.",
    notice="Qwen is licensed under the Qwen RESEARCH LICENSE AGREEMENT, Copyright (c) Alibaba Cloud. "
    "All Rights Reserved.\n",
    url="https://huggingface.co/Qwen/Qwen2.5-3B-Instruct/blob/main/LICENSE",
)


def requirements(license: str | None) -> Requirements:
    """Return what the licence with that id, or that name of an "other" licence, requires."""
    if match := re.fullmatch(r"llama(\d)\.(\d)", license or ""):
        version = ".".join(match.groups())
        return Requirements(
            statement="Built with Llama. The licence requires its text and notice beside the weights, a name that "
            f"begins with Llama, and use as the acceptable use policy of Llama {version} allows.",
            notice=f"Llama {version} is licensed under the Llama {version} Community License, Copyright © Meta "
            "Platforms, Inc. All Rights Reserved.\n",
            prefix="Llama",
            url=f"https://www.llama.com/llama{version.replace('.', '_')}/license/",
        )
    if license == "apache-2.0":
        return Requirements("The licence requires its text beside the weights and a statement of changes: this page.")
    return _QWEN if license == "qwen-research" else Requirements()


@dataclass(frozen=True)
class License:
    """``id`` is the Hub's, or the name of a licence that has no id there; ``link`` goes with such a name."""

    id: str | None = None
    link: str | None = None
    text: str | None = None

    @property
    def metadata(self) -> dict[str, str | None]:
        """Keys of the card's metadata."""
        if self.link is None:
            return {"license": self.id}
        return {"license": "other", "license_name": self.id, "license_link": self.link}


def resolve(license: str | None, file: str | None, base_model: str | None, revision: str | None) -> License:
    """Return the licence with the id *license*, else that of *base_model* on the Hub, with the text in *file*."""
    link = None
    if license is None and base_model is not None:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HTTPError, RepositoryNotFoundError

        try:
            data: Any = HfApi().model_info(base_model, revision=revision, timeout=20).card_data or {}
        except RepositoryNotFoundError:
            data = {}
        except (OSError, ValueError, HTTPError) as error:
            raise HubError(f"the card of {base_model} cannot be read from the Hub; give --license.") from error
        license = data.get("license_name") or data.get("license")
        link = data.get("license_link") if data.get("license_name") else None
    if license == "qwen-research":  # has no id on the Hub
        link = link or _QWEN.url
    path = Path(file) if file else _TEXTS / f"{license}.txt"
    try:
        text = path.read_text("utf-8") if file or path.is_file() else None
    except (OSError, ValueError) as error:
        raise UsageError(f"--license-file {file} is not a readable text file.") from error
    return License(license, link, text)


def write(license: License, folder: Path) -> None:
    """Write the licence's text and notice, as far as there are such, into *folder*."""
    for name, text in ((LICENSE, license.text), (NOTICE, requirements(license.id).notice)):
        if text:
            (folder / name).write_text(text, "utf-8")


def missing(release: Manifest) -> str | None:
    """Return what *release* lacks of what its licence requires, as a sentence; None if it may be uploaded."""
    license = release.facts["license"]
    required = requirements(license)
    if required.url and LICENSE not in release.files:
        return f"the licence {license} requires its text ({required.url}) beside the weights; give --license-file."
    if not release.facts["name"].startswith(required.prefix):
        return f"the licence {license} requires a name that begins with {required.prefix}; give one with --name."
    return None
