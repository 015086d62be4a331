"""Check of the files of a downloaded release: listed in the manifest, unchanged, and of a kind that a release has."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.artifacts import MANIFEST, Manifest
from countdown_rl.evaluation.results import DETAILS, METRICS, SAMPLES
from countdown_rl.hub.formats import FORMATS, GGUF, evaluation_key
from countdown_rl.hub.model_card import CARD, CURVES, LICENSE
from countdown_rl.models import chat_template
from countdown_rl.report.demo import INDEX
from countdown_rl.tasks.task import Row

#: What Git, the Hub, DVC and a download put beside the files of a release.
_BESIDE = (".cache", ".git", ".gitattributes", ".gitignore", MANIFEST)
#: Files of a release of version 0.1.
_OLDER = re.compile(r"NOTICE|\.eval_results/\w+\.yaml")
_MODELFILE = re.compile(
    r'FROM \./(?P<gguf>[^\n]+)\nTEMPLATE """.*{{ else }}(?P<head>.*){{ end }}'
    r'{{ \.Prompt }}(?P<tail>.*){{ \.Response }}"""'
    r"\n(?:PARAMETER (?:temperature|num_ctx|stop) [^\n]+\n)*",
    re.DOTALL,
)


def faults(folder: Path, manifest: Manifest, *, links: bool) -> Iterator[str]:
    """Yield a sentence for each difference between the files in *folder* and those that *manifest* lists.

    With *links* files may be links, as they are in the Hub's cache.
    """
    formats = manifest.facts["formats"]
    for location, format in formats.items():
        if format not in FORMATS or not re.fullmatch(r"\.(/\w[\w.-]*)?", location, re.ASCII):
            yield f"{MANIFEST} has weights in {location} of the format {format}, which no release has"
            return
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] in _BESIDE:
            continue
        if path.is_symlink() and not links:
            yield f"{name} is a link"
        elif name not in manifest.files and not path.is_dir():
            yield f"{name} is not in the manifest"
    if len({name.casefold() for name in manifest.files}) < len(manifest.files):
        yield "the names of two files differ in case alone"
    for name, entry in manifest.files.items():
        if not _is_known(name, formats):
            yield f"{name} is no file of such a release"
        elif not (folder / name).is_file():
            yield f"{name} is missing"
        elif artifacts.entry(folder / name) != entry:
            yield f"{name} is not the file that the manifest lists"
    for location, format in formats.items():
        files = [name for name in manifest.files if name.endswith(".gguf") and _location(name) == location]
        if len(files) != (format == GGUF.name):
            yield f"{location} has {len(files)} GGUF files, and its format is {format}"


def modelfile_faults(folder: Path, tokenizer: Any, row: Row) -> Iterator[str]:
    """Yield a sentence if the Modelfile in *folder* does not run its GGUF file with the chat template of *tokenizer*,
    as the user turn of *row* shows."""
    if not (folder / "Modelfile").is_file():
        return
    turn = next(turn for turn in row.messages() if turn["role"] == "user")
    prompt = chat_template.render(tokenizer, [turn], chat_template.CHAT_ARGUMENTS).removeprefix(
        tokenizer.bos_token or ""
    )
    match = _MODELFILE.fullmatch((folder / "Modelfile").read_text("utf-8"))
    if (
        not match
        or not (folder / match["gguf"]).is_file()
        or f"{match['head']}{turn['content']}{match['tail']}" != prompt
    ):
        yield "the Modelfile does not run the GGUF file with its chat template"


def _location(name: str) -> str:
    folder = name.rpartition("/")[0]
    return f"./{folder}" if folder else "."


def _is_known(name: str, formats: dict[str, str]) -> bool:
    """Return True if a release with weights in these *formats*, by location, may have a file of that *name*."""
    folder, _, base = name.rpartition("/")
    if name in (CARD, CURVES, INDEX, LICENSE) or _OLDER.fullmatch(name):
        return True
    if folder in map(evaluation_key, formats):
        return base in (DETAILS, METRICS, SAMPLES, MANIFEST)
    format = formats.get(_location(name))
    return format is not None and FORMATS[format].files.fullmatch(base) is not None
