"""Ask a model one puzzle: the row of the puzzle, and its completion, streamed."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from countdown_rl.core.errors import ModelError
from countdown_rl.inference.config import AskOptions
from countdown_rl.inference.generate import Completion, Decoding, Generator
from countdown_rl.models import chat_template, load
from countdown_rl.models.shape import ModelShape
from countdown_rl.tasks.countdown import rules, solver
from countdown_rl.tasks.countdown.rules import Puzzle
from countdown_rl.tasks.countdown.task import CountdownRow


def puzzle_row(
    options: AskOptions, numbers: list[int], target: int, layout: Mapping[str, str] | None = None
) -> CountdownRow:
    """The row of a puzzle; settings that are the default are left out, as in data.

    Args:
        layout: ``style`` and ``template`` that the model was trained with; the options replace them.

    Raises:
        InputError: the solver does not accept the puzzle, or its prompt cannot be made.
    """
    operators = rules.operators(options.operators)
    solver.check_puzzle(Puzzle(tuple(numbers), target, rules.rule(options.rule), operators))
    defaults = {"rule": rules.DEFAULT_RULE, "operators": rules.OPERATORS, "style": CountdownRow.styles[0]}
    settings = {"rule": options.rule, "operators": operators, **(layout or {})}
    settings |= {name: value for name in ("style", "template") if (value := getattr(options, name)) is not None}
    changed = {key: value for key, value in settings.items() if value != defaults.get(key)}
    row = CountdownRow({"nums": numbers, "target": target} | changed)
    row.prompt()
    return row


def ask(
    loaded: load.Loaded, row: CountdownRow, options: AskOptions, on_text: Callable[[str], None] | None = None
) -> Completion:
    """Complete *row* as an evaluation does, and call *on_text* with each piece of text as soon as it can be decoded.

    Raises:
        ModelError: the prompt fills the context.
    """
    prompt = chat_template.Rendered(chat_template.render(loaded.tokenizer, row.messages()), row.prompt().prefill)
    (ids,) = chat_template.token_ids(loaded.tokenizer, [prompt.text])
    context = ModelShape.of(loaded.model.config).context_length
    limit = min(options.max_new_tokens, options.max_new_tokens if context is None else context - len(ids))
    if limit <= 0:
        raise ModelError(f"the model reads {context} tokens, and the prompt alone has {len(ids)}; shorten the prompt.")
    generator = Generator(loaded, replace(Decoding.of(options), max_new_tokens=limit))
    opening, written = row.style.joined(prompt.answer, ""), ""

    def write(text: str) -> None:
        nonlocal written
        if on_text and len(text) > len(written):
            on_text(text[len(written) :] if written else opening + text)
            written = text

    def on_step(tokens: list[int]) -> None:
        text = generator.stop.decode(tokens)
        if not text.endswith("\ufffd"):  # the first tokens of a character
            write(text)

    generator.on_step = on_step if on_text else None
    (completion,) = generator.complete([ids])
    write(completion.text)
    return completion.after(row, prompt.text)
