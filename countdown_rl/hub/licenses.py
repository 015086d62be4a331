"""Under which terms weights go out: the licence as the Hub spells it, its text, and what the base asks.

What is known here of published bases is what their own licences say; a person's options come first.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from countdown_rl.artifacts import Manifest
from countdown_rl.errors import UsageError
from countdown_rl.hub.config import PublishOptions

LICENSE, NOTICE = "LICENSE", "NOTICE"

#: Licence texts that come with the package.
_TEXTS = Path(__file__).parents[1] / "assets" / "licenses"


@dataclass(frozen=True)
class Terms:
    """``license`` is an id of the Hub's; ``name`` and ``link`` go with "other". ``asks`` is what the base's
    licence wants of those who share what was made from it, ``notice`` the text of its NOTICE file, and
    ``prefix`` how such a model's name has to begin. With ``copy`` the licence wants its text beside the weights."""

    license: str | None = None
    name: str | None = None
    link: str | None = None
    asks: str = ""
    notice: str = ""
    prefix: str = ""
    copy: bool = False

    @property
    def metadata(self) -> dict[str, str | None]:
        """What the Hub's YAML wants of it."""
        return {"license": self.license, "license_name": self.name, "license_link": self.link if self.name else None}


def _llama(version: str, place: str) -> Terms:
    return Terms(
        license=f"llama{version}",
        link=f"https://www.llama.com/llama{place}/license/",
        asks=(
            "Built with Llama. The licence asks that its text and notice go with the weights, that their name begins "
            f"with Llama, and that they are used as the acceptable use policy of Llama {version} allows."
        ),
        notice=(
            f"Llama {version} is licensed under the Llama {version} Community License, Copyright © Meta Platforms, "
            "Inc. All Rights Reserved.\n"
        ),
        prefix="Llama",
        copy=True,
    )


_APACHE = Terms(
    "apache-2.0",
    asks="The licence asks that its text goes with the weights and that changes are stated; this page does.",
)
#: By the base's id on the Hub, the first that fits.
_BASES = (
    (r"meta-llama/(Meta-)?Llama-3\.1-.*", _llama("3.1", "3_1")),
    (r"meta-llama/Llama-3\.2-.*", _llama("3.2", "3_2")),
    (r"meta-llama/Llama-3\.3-.*", _llama("3.3", "3_3")),
    (
        r"Qwen/Qwen2\.5-3B(-Instruct)?",
        Terms(
            "other",
            name="qwen-research",
            link="https://huggingface.co/Qwen/Qwen2.5-3B-Instruct/blob/main/LICENSE",
            asks=(
                "Built with Qwen. The licence allows research and evaluation only, not commercial use, and asks that "
                "its text goes with the weights."
            ),
            notice=(
                "Qwen is licensed under the Qwen RESEARCH LICENSE AGREEMENT, Copyright (c) Alibaba Cloud. "
                "All Rights Reserved.\n"
            ),
            copy=True,
        ),
    ),
    (r"Qwen/Qwen(2\.5-(0\.5|1\.5|7|14|32)B|3-[\d.]+B).*", _APACHE),
    (r"HuggingFaceTB/SmolLM[23]-.*", _APACHE),
)


def of_base(base_model: str | None) -> Terms:
    """The terms of a base on the Hub, empty where they are not known here."""
    return next((terms for pattern, terms in _BASES if base_model and re.fullmatch(pattern, base_model)), Terms())


def settle(options: PublishOptions, base_model: str | None, *, shipped: bool) -> Terms:
    """The terms of a release: as the options have it, else as its base does, else (*shipped*) as this package."""
    terms = of_base(base_model)
    if options.license is not None and options.license != terms.license:
        return replace(terms, license=options.license, name=None, link=None)
    return _APACHE if terms.license is None and shipped else terms


def lacking(release: Manifest) -> str | None:
    """What the licence of its base asks for and *release* has not; None when it may go out."""
    base_model, name = release.facts["base_model"], release.facts["name"]
    asked = of_base(base_model)
    if asked.copy and LICENSE not in release.files:
        return (
            f"the licence of {base_model} asks that its text goes with the weights; give it with --license-file (it "
            f"is at {asked.link})."
        )
    if not name.startswith(asked.prefix):
        return f"the licence of {base_model} asks for a name that begins with {asked.prefix}; give one with --name."
    return None


def write(terms: Terms, options: PublishOptions, folder: Path) -> None:
    """Put the licence's text and the notice, as far as there are such, into *folder*.

    Raises:
        UsageError: --license-file is no text that can be read.
    """
    text = None
    if options.license_file is not None:
        try:
            text = Path(options.license_file).read_text("utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"--license-file {options.license_file} is no text that can be read.") from error
    elif terms.license and (known := _TEXTS / f"{terms.license}.txt").is_file():
        text = known.read_text("utf-8")
    if text is not None:
        (folder / LICENSE).write_text(text, "utf-8")
    if terms.notice:
        (folder / NOTICE).write_text(terms.notice, "utf-8")


def section(terms: Terms, base_model: str | None, files: Mapping[str, Any]) -> str:
    """What the card says of them, with links to the files that are there."""
    lines = []
    if terms.license:
        shown = terms.name or terms.license
        lines.append(f"Licence: {shown}" + (f" ([its text]({LICENSE}))." if LICENSE in files else "."))
    if base_model:
        page = f"[{base_model}](https://huggingface.co/{base_model})"
        lines.append(f"The terms of {page}, from which these weights were made, apply as well.")
    elif not terms.license:
        lines.append("No licence was given; the terms of the model that these weights were made from apply.")
    if terms.asks:
        lines.append(terms.asks)
    if NOTICE in files:
        lines.append(f"See the [notice]({NOTICE}).")
    return "## Licence\n\n" + " ".join(lines)
