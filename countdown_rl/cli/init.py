"""``countdown-rl init``: the pipeline in a directory of one's own."""

import re
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Annotated

import typer

from countdown_rl.cli import console
from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError

#: The files of the pipeline, as patterns. They are data files of an installed package, and of a clone its own.
_FILES = ("dvc.yaml", ".dvcignore", ".gitignore", ".dvc/config", "stages/*.yaml")
_CLONE = Path(__file__).parents[2]


def init(*, directory: Annotated[Path, typer.Argument(help="Directory to write into.")] = Path()) -> None:
    """Write the pipeline into a directory: dvc.yaml, stages/ and the settings of DVC.

    The stages then run with `dvc repro` there (pip install dvc). Other files of these names are not replaced.

    Examples:
        countdown-rl init my-run
    """
    source = _source()
    texts = {path.relative_to(source): path.read_text("utf-8") for name in _FILES for path in source.glob(name)}
    texts[Path("dvc.yaml")] = _without_code(texts[Path("dvc.yaml")])
    if not any((parent / ".git").exists() for parent in (directory.absolute(), *directory.absolute().parents)):
        texts[Path(".dvc/config")] = texts[Path(".dvc/config")].replace("[core]\n", "[core]\n    no_scm = true\n")
    for name, text in texts.items():
        file = directory / name
        # An interrupted init left the same text.
        if file.exists() and not (file.is_file() and file.read_bytes() == text.encode()):
            raise InputError(f"{file} is there already; choose another directory.")
    for name, text in texts.items():
        with artifacts.replacing(directory / name) as partial:
            partial.write_text(text, "utf-8")
    console.note(f"Wrote the pipeline into {directory}. Its options are in stages/; run `dvc repro` there.")


def _source() -> Path:
    """The directory that holds the files of the pipeline: a clone, or that of the installation's data files."""
    if (_CLONE / "dvc.yaml").is_file():
        return _CLONE
    try:
        installed = files("countdown-rl") or []
    except PackageNotFoundError:
        installed = []
    paths = [Path(str(file.locate())) for file in installed if file.match("share/countdown-rl/dvc.yaml")]
    if not paths or not paths[0].is_file():
        raise InputError("the files of the pipeline were not installed; install countdown-rl again, without --target.")
    return paths[0].parent


def _without_code(text: str) -> str:
    """*text*, that of dvc.yaml, without dependencies on the code, which is installed."""
    text = re.sub(r" A stage depends.*?no output\.", "", text, flags=re.DOTALL)
    text = re.sub(r"made: countdown_rl/\S+", "made: artifacts/data", text)
    text = re.sub(r",?\s+countdown_rl/[\w./]+", "", text)
    return re.sub(r"\[countdown_rl/[\w./]+", "[", text)
