import re
from importlib.metadata import distribution
from pathlib import Path
from typing import Annotated

import typer

from countdown_rl.cli import console
from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError

#: The files of the pipeline. A clone has them at its root, an installed package as its data files.
_FILES = ("dvc.yaml", ".dvcignore", ".gitignore", ".dvc/config", "stages/*.yaml")
_CLONE = Path(__file__).parents[2]


def init(
    *, directory: Annotated[Path, typer.Argument(help="Directory to write into.")] = Path()
) -> None:
    """Write the pipeline into a directory: dvc.yaml, stages/ and the settings of DVC.

    Run it there with `dvc repro` (pip install dvc). Files of these names with other contents are not replaced. If the
    options in stages/ name files of your own (a reward, a template, data), add these to the `deps` of the stage.

    Examples:
        countdown-rl init my-run
    """
    source = _source()
    texts = {
        path.relative_to(source): path.read_text("utf-8")
        for name in _FILES
        for path in source.glob(name)
    }
    texts[Path("dvc.yaml")] = _without_code(texts[Path("dvc.yaml")])
    here = directory.absolute()
    if not any((parent / ".git").exists() for parent in (here, *here.parents)):
        config = Path(".dvc/config")
        texts[config] = texts[config].replace("[core]\n", "[core]\n    no_scm = true\n")
    for name, text in texts.items():
        file = directory / name
        if file.exists() and file.read_bytes() != text.encode():
            raise InputError(f"{file} exists; choose another directory.")
    for name, text in texts.items():
        with artifacts.replacing(directory / name) as partial:
            partial.write_text(text, "utf-8")
    console.result({"out": str(directory), "files": sorted(map(Path.as_posix, texts))})
    console.note(
        f"Wrote the pipeline into {directory}. Its options are in stages/; run `dvc repro` there."
    )


def _without_code(text: str) -> str:
    """Return dvc.yaml without the dependencies on the code of a clone, which an installed package has elsewhere."""
    text = re.sub(r"made: countdown_rl/\S+", "made: artifacts/data", text)
    text = re.sub(r"\bcountdown_rl/[\w/.]+(,\s*|(?=\]))", "", text)
    return re.sub(r",\s*\]", "]", text)


def _source() -> Path:
    """Return the directory that holds the files of the pipeline."""
    if (_CLONE / "dvc.yaml").is_file():
        return _CLONE
    for file in distribution("countdown-rl").files or ():
        if (
            file.match("share/countdown-rl/dvc.yaml")
            and (path := Path(str(file.locate()))).is_file()
        ):
            return path.parent
    raise InputError(
        "the files of the pipeline were not installed; install countdown-rl again, without --target."
    )
