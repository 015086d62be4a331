"""Imports between the modules of the package, read from their source."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def imports(file: str, *, for_types: bool = True) -> set[str]:
    """Return the files of the package that *file* imports anywhere in its code (paths from the repository's root).

    Args:
        for_types: those under ``if TYPE_CHECKING`` too.
    """
    names = set()
    tree = ast.parse((ROOT / file).read_text())
    if not for_types:
        tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node))]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "countdown_rl":
            names |= {(node.module, f"{node.module}.{alias.name}") for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {(alias.name, alias.name) for alias in node.names if alias.name.split(".")[0] == "countdown_rl"}
    files = set()
    for package, module in names:
        paths = [f"{name.replace('.', '/')}.py" for name in (module, package)]
        files |= {path for path in paths if (ROOT / path).is_file()}
    return files


def import_closure(file: str, *, without: tuple[str, ...] = ()) -> set[str]:
    """Return the files that *file* imports, directly or not; paths that begin as one of *without* are not followed."""
    closure: set[str] = set()
    waiting = imports(file, for_types=False)
    while waiting:
        path = waiting.pop()
        if path not in closure and not path.startswith(without):
            closure.add(path)
            waiting |= imports(path, for_types=False)
    return closure
