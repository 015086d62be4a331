"""Registry of engines, which compute completions behind one interface, and the choice among them.

``transformers`` runs every model that can be loaded, with this package's own decoders for those that they support.
``vllm`` runs checkpoints and adapters on GPUs, ``openai`` asks a server. Greedy completions of different engines differ
by their rounding.
"""

from collections.abc import Callable, Generator, Sequence
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal

from countdown_rl.core import packages
from countdown_rl.core.errors import ModelError, UsageError

if TYPE_CHECKING:
    from countdown_rl.inference.generate import Completion
    from countdown_rl.models.reference import ModelRef
    from countdown_rl.tasks.task import Row

#: The class of each engine, in the order in which "auto" tries them.
ENGINES = {
    "vllm": "countdown_rl.inference.vllm:Vllm",
    "transformers": "countdown_rl.inference.generate:Generator",
    "openai": "countdown_rl.inference.openai:OpenAI",
}
if TYPE_CHECKING:
    EngineName = str
else:
    EngineName = Literal[("auto", *ENGINES)]


class Engine:
    """A model ready to complete prompts; the versions of the distributions *libraries* decide the completions.

    *on_step* is called after each step of a batch with the token ids of one of its longest completions, by engines that
    compute step by step.
    """

    name: str
    #: The distribution that must be installed.
    package: str | None = None
    tokenizer: Any
    precision: str
    storage: str
    device: str
    libraries: tuple[str, ...]
    #: The server that holds the model, and what it did with requests, for the metrics; None on this machine.
    endpoint: dict[str, Any] | None = None
    on_step: Callable[[list[int]], None] | None = None

    @classmethod
    def load(cls, ref: "ModelRef", decoding: Any, options: Any) -> "Engine":
        """Load *ref* in the precision, on the device and on as many GPUs as *options* say."""
        raise NotImplementedError

    @classmethod
    def is_automatic(cls, ref: "ModelRef", tokens: float) -> bool:
        """Return True if "auto" may choose this engine on this machine, for up to so many *tokens* of *ref*."""
        return False

    @classmethod
    def unsupported(cls, ref: "ModelRef", options: Any) -> str:
        """Return the reason why this engine cannot run *ref* by *options*, as the end of a sentence; "" if it can."""
        return ""

    def prepare(self, length: int) -> int | None:
        """Prepare for prompts and completions of *length* tokens together; returns the context length if known."""
        return None

    def max_rows(self, prompt: int, completion: int) -> int:
        """Return the size of a batch of rows of *prompt* tokens and up to *completion* more."""
        return 1

    def prompts(
        self, rows: "Sequence[Row]", max_new_tokens: int
    ) -> "tuple[Sequence[Row], list[Any]]":
        """Return *rows* as this engine completes them, and the prompt of each; prepare for their length."""
        from countdown_rl.models import chat_template, shape

        prompts = chat_template.encode(self.tokenizer, (row.messages() for row in rows))
        longest = max(map(len, prompts))
        shape.check_context(
            self.prepare(longest + max_new_tokens), longest, max_new_tokens, "--max-new-tokens"
        )
        return rows, prompts

    def complete(self, prompts: Sequence[Any], number: int = 0) -> "list[Completion]":
        """Complete each of *prompts* (token ids); batch *number* of a run has its own random numbers."""
        raise NotImplementedError

    def complete_all(
        self, batches: Sequence[tuple[int, Sequence[Any]]]
    ) -> "Generator[tuple[int, list[Completion]]]":
        """Yield the position of each of *batches*, a number and its prompts, with its completions."""
        for position, (number, prompts) in enumerate(batches):
            yield position, self.complete(prompts, number)


def engine_class(name: str) -> Any:
    """Return the class of the engine *name*."""
    return resolve_name(ENGINES[name])


def choose_engine(ref: "ModelRef", options: Any, tokens: float) -> Any:
    """Return the class of the engine of *options* to run *ref* with. "auto" is the first that is installed, suits the
    machine, supports the weights and is worth its start for up to so many *tokens*. Raises UsageError if the engine
    does not support these weights or several GPUs, and ModelError if it is not installed."""
    if options.engine == "auto":
        kinds = (engine_class(name) for name in ENGINES if not missing_package(name))
        kind = next(
            kind
            for kind in kinds
            if not kind.unsupported(ref, options) and kind.is_automatic(ref, tokens)
        )
    else:
        kind = engine_class(options.engine)
        if reason := kind.unsupported(ref, options):
            raise UsageError(f"{kind.name} {reason}.", option="engine")
        check_installed(kind.name)
    return kind


def check_installed(name: str) -> None:
    """Raise ModelError if the package of the engine *name* is not installed."""
    if reason := missing_package(name):
        raise ModelError(f"{name} {reason}, or leave --engine out.", option="engine")


def missing_package(name: str) -> str:
    """The package that the engine *name* lacks, as the end of a sentence; "" if it is installed."""
    package = engine_class(name).package
    return (
        f"needs {package}: {packages.pip_install(package)}"
        if package and find_spec(package) is None
        else ""
    )
