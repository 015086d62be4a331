"""Options of ``eval``."""

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from countdown_rl.core.errors import UsageError
from countdown_rl.core.options import Precision, option
from countdown_rl.core.types import JsonObject
from countdown_rl.inference.config import DECODING, MACHINE, OPENAI, SamplingOptions
from countdown_rl.inference.engines import EngineName
from countdown_rl.tasks.options import RULE, Fields, RecordsPath
from countdown_rl.tasks.response_format import StyleChoice

COMPLETIONS = "Completions made elsewhere"
#: Options that change the speed, not the result; a server's URL is recorded with its model.
_SPEED = ("base_url", "batch_size")
#: Options for a file of completions alone.
OF_COMPLETIONS = ("style", "rule", "operators", "field", "records")

CompletionStyle = Annotated[
    StyleChoice | None,
    option(
        "Response format of all completions; direct, boxed, answer_line: without tags.",
        COMPLETIONS,
        show_default="of the row",
    ),
]
CompletionRule = Annotated[
    str | None,
    option(f"{RULE} For rows that state none.", COMPLETIONS, show_default="exactly-once"),
]
CompletionOperators = Annotated[
    str | None,
    option("Allowed operators, for rows that state none.", COMPLETIONS, show_default="+-*/"),
]
OnError = Annotated[
    Literal["stop", "mark"],
    option("At a record that cannot be graded: stop, or mark it as an error and continue."),
]


@dataclass(frozen=True)
class EvalOptions(SamplingOptions):
    """Number of puzzles, decoding settings and engine of an evaluation."""

    limit: Annotated[
        int | None, option("Evaluate only the first N rows.", min=1, show_default="all")
    ] = None
    samples: Annotated[
        int, option("Completions per puzzle; pass@k is reported.", DECODING, min=1, max=4096)
    ] = 1
    batch_size: Annotated[
        int,
        option(
            "Puzzles per batch, requests in flight of a server; 0: as many as fit, or 16.",
            MACHINE,
            min=0,
        ),
    ] = 0
    engine: Annotated[
        EngineName, option("Engine of completions; openai: the server at --base-url.", MACHINE)
    ] = "auto"
    base_url: Annotated[
        str, option("OpenAI-compatible server; its key is read from OPENAI_API_KEY.", MACHINE)
    ] = OPENAI
    precision: Annotated[Precision, option("Precision of the weights.", MACHINE)] = "auto"
    style: CompletionStyle = None
    rule: CompletionRule = None
    operators: CompletionOperators = None
    field: Fields = ()
    records: RecordsPath = None

    def __post_init__(self) -> None:
        super().__post_init__()
        of_server = self.engine == "openai"
        if self.base_url != OPENAI and not of_server:
            raise UsageError("is for servers; add --engine openai.", option="base_url")
        if self.precision != "auto" and of_server:
            raise UsageError(
                "is for models on this machine; leave it out with --engine openai.",
                option="precision",
            )

    @property
    def recorded(self) -> JsonObject:
        """The options that decide the result of a model, of which greedy decoding needs no seed."""
        without = {*_SPEED, *OF_COMPLETIONS}
        if self.temperature == 0:
            without.add("seed")
        return {name: value for name, value in asdict(self).items() if name not in without}

    @property
    def of_completions(self) -> JsonObject:
        """The options on completions made elsewhere that are not at their default, by name."""
        values = {name: getattr(self, name) for name in OF_COMPLETIONS}
        return {name: value for name, value in values.items() if value}

    @property
    def of_models(self) -> list[str]:
        """The options for a model that are not at their default."""
        changed = asdict(self).items() - asdict(type(self)()).items()
        return sorted(dict(changed).keys() - set(OF_COMPLETIONS))
