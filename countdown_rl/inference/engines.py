"""Registry of engines, and the choice among them.

``transformers`` runs every model that can be loaded, on a CPU by this package's own decoder if that
supports it. ``vllm`` runs checkpoints and adapters on GPUs, ``openai`` asks a server. Greedy
completions of different engines differ by their rounding.
"""

from importlib.util import find_spec
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal

from countdown_rl.core import packages
from countdown_rl.core.errors import ModelError, UsageError
from countdown_rl.inference.engine import Engine
from countdown_rl.models.reference import ModelRef

#: The class of each engine.
ENGINES = {
    "vllm": "countdown_rl.inference.vllm:Vllm",
    "transformers": "countdown_rl.inference.generate:Generator",
    "openai": "countdown_rl.inference.openai:OpenAI",
}
if TYPE_CHECKING:
    EngineName = str
else:
    EngineName = Literal[("auto", *ENGINES)]


def engine_class(name: str) -> Any:
    """Return the class of the engine *name*."""
    return resolve_name(ENGINES[name])


def choose_engine(ref: ModelRef, options: Any) -> type[Engine]:
    """Return the class of the engine of *options* to run *ref* with.

    "auto" is vLLM on a CUDA GPU if it is installed and supports *ref*, else transformers. Raises
    UsageError if the engine does not support *ref*, and ModelError if it is not installed.
    """
    name = options.engine
    if name == "auto":
        name = "vllm" if _vllm_suits(ref, options) else "transformers"
    kind: type[Engine] = engine_class(name)
    if reason := kind.unsupported(ref, options):
        raise UsageError(f"{name} {reason}.", option="engine")
    check_installed(name)
    return kind


def _vllm_suits(ref: ModelRef, options: Any) -> bool:
    import torch

    if missing_package("vllm") or not torch.cuda.is_available():
        return False
    return not engine_class("vllm").unsupported(ref, options)


def check_installed(name: str) -> None:
    """Raise ModelError if the package of the engine *name* is not installed."""
    if reason := missing_package(name):
        raise ModelError(f"{name} {reason}, or leave --engine out.", option="engine")


def missing_package(name: str) -> str:
    """Return the package that the engine *name* lacks, as the end of a sentence, or ""."""
    package = engine_class(name).package
    if package is None or find_spec(package) is not None:
        return ""
    return f"needs {package}: {packages.install(package)}"
