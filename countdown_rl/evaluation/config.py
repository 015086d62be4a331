"""Options of ``eval``."""

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

from countdown_rl.core.errors import UsageError
from countdown_rl.core.options import MAX_INTEGER, RULE, Device, Precision, option
from countdown_rl.inference.config import (
    OPENAI,
    SERVER,
    BaseUrl,
    SamplingOptions,
    Timeout,
    check_server,
)
from countdown_rl.inference.engines import EngineName
from countdown_rl.tasks.response_format import StyleChoice, style_name

DECODING, MACHINE, COMPLETIONS = "Decoding", "Machine", "Completions made elsewhere"
#: Bound of `samples`.
MAX_SAMPLES = 4096
#: Options that change the speed, not the result; a server's URL is recorded with its model.
_SPEED = ("threads", "device", "tensor_parallel", "base_url", "concurrency", "timeout")
#: Options for a file of completions alone.
OF_COMPLETIONS = ("style", "rule", "operators", "completion_field", "on_error", "missing")

CompletionStyle = Annotated[
    StyleChoice | None,
    option(
        "Response format of all completions; direct: the answer alone, without tags.",
        COMPLETIONS,
        show_default="of the row",
        parser=style_name,
    ),
]
CompletionRule = Annotated[
    str | None,
    option(f"{RULE} For rows that state none.", COMPLETIONS, show_default="exactly-once"),
]
CompletionOperators = Annotated[
    str | None,
    option(
        "Allowed operators, where none are stated, e.g. '+-'.", COMPLETIONS, show_default="+-*/"
    ),
]
CompletionField = Annotated[
    str | None,
    option(
        "Field that holds the completions.",
        COMPLETIONS,
        metavar="NAME",
        show_default="completion, response, ...",
    ),
]
OnError = Annotated[
    Literal["stop", "mark"],
    option(
        "For a record that cannot be graded: stop, or mark it as an error and go on.", COMPLETIONS
    ),
]


@dataclass(frozen=True)
class EvalOptions(SamplingOptions):
    """Number of puzzles, decoding settings and engine of an evaluation."""

    limit: Annotated[
        int | None, option("Evaluate only the first N rows.", min=1, show_default="all")
    ] = None
    max_new_tokens: Annotated[
        int | str,
        option(
            "Maximum tokens of a completion; 256,512 scores it at both limits.",
            DECODING,
            metavar="N[,N...]",
        ),
    ] = 256
    samples: Annotated[
        int | None,
        option(
            "Completions per puzzle.",
            DECODING,
            min=1,
            max=MAX_SAMPLES,
            show_default="largest --pass-at, else 1",
        ),
    ] = None
    pass_at: Annotated[
        str | None,
        option(
            "Values k of pass@k, e.g. 1,4,16.",
            DECODING,
            metavar="K,K,...",
            show_default="powers of two",
        ),
    ] = None
    batch_size: Annotated[
        int, option("Puzzles per batch; 0 adapts to the memory.", MACHINE, min=0)
    ] = 0
    engine: Annotated[
        EngineName, option("Engine of completions; openai: the server at --base-url.", MACHINE)
    ] = "auto"
    tensor_parallel: Annotated[
        int, option("GPUs that share the model, in vLLM.", MACHINE, min=1)
    ] = 1
    precision: Annotated[Precision, option("Precision of the weights.", MACHINE)] = "auto"
    device: Annotated[Device, option("Device to compute on.", MACHINE)] = "auto"
    threads: Annotated[int, option("CPU threads; 0: all available.", MACHINE, min=0)] = 0
    base_url: BaseUrl = OPENAI
    concurrency: Annotated[int, option("Requests in flight at once.", SERVER, min=1, max=1000)] = 16
    timeout: Timeout = 600.0
    style: CompletionStyle = None
    rule: CompletionRule = None
    operators: CompletionOperators = None
    completion_field: CompletionField = None
    on_error: OnError = "stop"
    missing: Annotated[
        Literal["omit", "wrong"] | None,
        option(
            "Rows of --data without a completion: omit them, or count them as incorrect.",
            COMPLETIONS,
            show_default="omit; wrong for a suite",
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        largest = max(self.pass_at_values, default=1)
        if largest > MAX_SAMPLES:
            raise UsageError(
                f"{largest} is too large; give --pass-at up to {MAX_SAMPLES}.", option="samples"
            )
        if len(self.limits) > 1 and self.engine == "openai":
            raise UsageError(
                "a server does not send token ids; give one limit in --max-new-tokens."
            )
        if self.samples is not None and self.samples < largest:
            needed = f"--samples {largest} or more; leave --samples out"
            raise UsageError(f"{self.pass_at} needs {needed}.", option="pass_at")
        local = ("batch_size", "tensor_parallel", "precision", "device", "threads")
        check_server(self, self.engine, self.base_url, *local)

    @property
    def per_row(self) -> int:
        """The completions of a row."""
        return self.samples or max(self.pass_at_values, default=1)

    @property
    def recorded(self) -> dict[str, Any]:
        """The options that decide the result of a model."""
        limits = self.limits[0] if len(self.limits) == 1 else ",".join(map(str, self.limits))
        values = asdict(self) | {"samples": self.per_row, "max_new_tokens": limits}
        return {
            name: value for name, value in values.items() if name not in (*_SPEED, *OF_COMPLETIONS)
        }

    @property
    def of_completions(self) -> dict[str, Any]:
        """The options on completions made elsewhere that are not at their default, by name."""
        return {
            name: value
            for name in OF_COMPLETIONS
            if (value := getattr(self, name)) != getattr(type(self), name)
        }

    @property
    def of_models(self) -> list[str]:
        """The options that decide what a model writes and are not at their default."""
        own = replace(self, samples=self.samples or 1, pass_at=None).recorded
        return [name for name, value in type(self)().recorded.items() if value != own[name]]

    @property
    def pass_at_values(self) -> list[int]:
        """The values of ``pass_at``, smallest first."""
        return [] if self.pass_at is None else _numbers("--pass-at", self.pass_at)

    @property
    def limits(self) -> list[int]:
        """The token limits in ``max_new_tokens``, smallest first."""
        return _numbers("--max-new-tokens", str(self.max_new_tokens))


def _numbers(flag: str, text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdecimal() and 0 < int(word) <= MAX_INTEGER for word in words):
        raise UsageError(f"{flag} {text} should be positive numbers such as 1,4,16.")
    return sorted({int(word) for word in words})
