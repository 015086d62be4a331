"""``countdown-rl init``: the pipeline in a directory of your own."""

from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Annotated

import typer
import yaml

from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson
from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError

#: The files of the pipeline. A clone has them at its root, an installed package as its data files.
_FILES = ("dvc.yaml", ".dvcignore", ".gitignore", ".dvc/config", "stages/*.yaml")
_CLONE = Path(__file__).parents[2]


def init(
    *,
    directory: Annotated[Path, typer.Argument(help="Directory to write into.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write the pipeline into a directory: dvc.yaml, stages/ and the settings of DVC.

    Run it there with `dvc repro` (pip install dvc). Files of these names with other contents are not replaced.

    Examples:
        countdown-rl init my-run
    """
    source = _source()
    texts = {path.relative_to(source): path.read_text("utf-8") for name in _FILES for path in source.glob(name)}
    pipeline, config = Path("dvc.yaml"), Path(".dvc/config")
    texts[pipeline] = _without_code(texts[pipeline])
    if not any((parent / ".git").exists() for parent in (directory.absolute(), *directory.absolute().parents)):
        texts[config] = texts[config].replace("[core]\n", "[core]\n    no_scm = true\n")
    for name, text in texts.items():
        file = directory / name
        if file.exists() and not (file.is_file() and file.read_bytes() == text.encode()):
            raise InputError(f"{file} exists; choose another directory.")
    for name, text in texts.items():
        with artifacts.replacing(directory / name) as partial:
            partial.write_text(text, "utf-8")
    console.result({"out": str(directory), "files": sorted(map(Path.as_posix, texts))}, as_json=as_json)
    console.note(f"Wrote the pipeline into {directory}. Its options are in stages/; run `dvc repro` there.")


def _source() -> Path:
    """Return the directory that holds the files of the pipeline."""
    if (_CLONE / "dvc.yaml").is_file():
        return _CLONE
    for file in distribution("countdown-rl").files or ():
        if file.match("share/countdown-rl/dvc.yaml") and (path := Path(str(file.locate()))).is_file():
            return path.parent
    raise InputError("the files of the pipeline were not installed; install countdown-rl again, without --target.")


def _without_code(text: str) -> str:
    """Return dvc.yaml without dependencies on the code, which is installed; its comments stay.

    A stage that depends on code alone depends on the data.
    """
    for node in reversed([*_values(yaml.compose(text))]):
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        kept = [text[item.start_mark.index : item.end_mark.index] for item in items if not _is_code(item)]
        if len(kept) < len(items):
            new = f"[{', '.join(kept)}]" if isinstance(node, yaml.SequenceNode) else "artifacts/data"
            text = text[: node.start_mark.index] + new + text[node.end_mark.index :]
    return text


def _values(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """Yield the values of the mappings in *node*, in the order of the text."""
    for _, value in node.value if isinstance(node, yaml.MappingNode) else ():
        yield value
        yield from _values(value)


def _is_code(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.value.startswith("countdown_rl/")
