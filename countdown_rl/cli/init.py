import shutil
from pathlib import Path
from typing import Annotated

import typer

from countdown_rl.cli import console
from countdown_rl.core.errors import InputError

_PIPELINE = Path(__file__).parents[1] / "assets" / "pipeline"


def init(
    *, directory: Annotated[Path, typer.Argument(help="Directory to write into.")] = Path()
) -> None:
    """Write the pipeline into a directory: dvc.yaml, stages/ and the settings of DVC.

    Run it there with `dvc repro` (pip install dvc). Existing files are not replaced. If the options
    in stages/ name files of your own (a reward, a template, data), add these to the `deps` of the
    stage.

    Examples:
        countdown-rl init my-run
    """
    files = [path.relative_to(_PIPELINE) for path in _PIPELINE.rglob("*") if path.is_file()]
    for file in files:
        if (directory / file).exists():
            raise InputError(f"{directory / file} exists; choose another directory.")

    shutil.copytree(_PIPELINE, directory, dirs_exist_ok=True)
    here = directory.absolute()
    if not any((parent / ".git").exists() for parent in (here, *here.parents)):
        config = directory / ".dvc" / "config"
        config.write_text(config.read_text().replace("[core]", "[core]\n    no_scm = true"))
    console.result({"out": str(directory), "files": sorted(map(Path.as_posix, files))})
    change = "" if directory == Path() else f"cd {directory} && "
    text = f"Wrote the pipeline into {directory}; its options are in stages/."
    console.done(text, f"{change}dvc repro")
