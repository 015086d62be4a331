from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from countdown_rl.cli import console
from countdown_rl.cli.config import options_in
from countdown_rl.core import artifacts, user_code
from countdown_rl.core.errors import InputError

#: The files of the pipeline. A clone has them at its root, an installed package as its data files.
_FILES = ("dvc.yaml", ".dvcignore", ".gitignore", ".dvc/config", "stages/*.yaml")
_CLONE = Path(__file__).parents[2]


def init(
    *, directory: Annotated[Path, typer.Argument(help="Directory to write into.")] = Path()
) -> None:
    """Write the pipeline into a directory: dvc.yaml, stages/ and the settings of DVC.

    Run it there with `dvc repro` (pip install dvc). Files of these names with other contents are not replaced, but
    options in stages/ are yours: repeat this after they name files of your own (a reward, a template, data), so that
    the stages depend on these.

    Examples:
        countdown-rl init my-run
    """
    source = _source()
    texts = {
        path.relative_to(source): path.read_text("utf-8")
        for name in _FILES
        for path in source.glob(name)
    }
    pipeline, config = Path("dvc.yaml"), Path(".dvc/config")
    stages = [name for name in texts if name.parent.name == "stages"]
    edited = [name for name in stages if (directory / name).is_file()]
    own = {
        name.stem: _own_files(directory, options_in(directory / name, name.stem)) for name in edited
    }
    texts |= {name: (directory / name).read_text("utf-8") for name in edited}

    def depends(path: tuple[str, ...], names: list[str]) -> list[str]:
        kept = [name for name in names if not name.startswith("countdown_rl/")]
        added = [
            yaml.safe_dump([name], default_flow_style=True, width=10**6)[1:-2]
            for name in own.get(path[1], [])
        ]
        return kept + added if path[-1] == "deps" else kept or ["artifacts/data"]

    texts[pipeline] = _with_dependencies(texts[pipeline], depends)
    if not any(
        (parent / ".git").exists()
        for parent in (directory.absolute(), *directory.absolute().parents)
    ):
        texts[config] = texts[config].replace("[core]\n", "[core]\n    no_scm = true\n")
    for name, text in texts.items():
        file = directory / name
        old = file.read_bytes().decode("utf-8", "replace") if file.is_file() else None
        if (
            old is not None and name == pipeline
        ):  # it may have been written for other files of the user's
            old, text = (_with_dependencies(each, lambda *_: []) for each in (old, text))
        if file.exists() and old != text:
            raise InputError(f"{file} exists; choose another directory.")
    for name, text in texts.items():
        with artifacts.replacing(directory / name) as partial:
            partial.write_text(text, "utf-8")
    console.result({"out": str(directory), "files": sorted(map(Path.as_posix, texts))})
    console.note(
        f"Wrote the pipeline into {directory}. Its options are in stages/; run `dvc repro` there."
    )


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


def _own_files(directory: Path, options: Mapping[str, Any]) -> list[str]:
    """Return the files in *directory* that a stage's *options* name: as paths, or as the modules of functions."""
    modules = set()
    for name in user_code.named(options):
        file = directory / (name.partition(":")[0].replace(".", "/") + ".py")
        modules |= {file} if file.is_file() else set()
    items = (
        item
        for value in options.values()
        for item in (value if isinstance(value, list) else [value])
    )
    paths = {
        directory / item for item in items if isinstance(item, str) and (directory / item).is_file()
    }
    return sorted(
        file.relative_to(directory).as_posix()
        for file in modules | paths
        if directory in file.parents
    )


def _with_dependencies(text: str, change: Callable[[tuple[str, ...], list[str]], list[str]]) -> str:
    """Return dvc.yaml with what *change* returns for the place and names of ``deps`` and ``made``; comments stay."""
    for path, node in reversed([*_values(yaml.compose(text))] if "stages:" in text else []):
        if path[-1] == "deps" or (isinstance(node, yaml.ScalarNode) and path[-1] == "made"):
            listed = isinstance(node, yaml.SequenceNode)
            items = node.value if listed else [node]
            old = [text[item.start_mark.index : item.end_mark.index] for item in items]
            names = change(path, old)
            if names != old:
                new = f"[{', '.join(names)}]" if listed else "".join(names)
                text = text[: node.start_mark.index] + new + text[node.end_mark.index :]
    return text


def _values(
    node: yaml.Node | None, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], yaml.Node]]:
    """Yield the values of the mappings in *node* with their keys, in the order of the text."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        yield (*path, key.value), value
        yield from _values(value, (*path, key.value))
