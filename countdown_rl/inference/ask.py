"""Asking a model one puzzle: the row of the puzzle, and its completion, also while it is generated."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from countdown_rl.core.errors import ModelError
from countdown_rl.inference.config import AskOptions
from countdown_rl.inference.generate import STOP, Completion, Decoding, Generator
from countdown_rl.inference.openai import OpenAI
from countdown_rl.inference.stop import Stop
from countdown_rl.models import chat_template, load
from countdown_rl.models.shape import ModelShape
from countdown_rl.tasks.countdown import rules, solver
from countdown_rl.tasks.countdown.rules import Puzzle
from countdown_rl.tasks.countdown.task import CountdownRow


def puzzle_row(
    options: AskOptions, numbers: list[int], target: int, layout: Mapping[str, str] | None = None
) -> CountdownRow:
    """The row of a puzzle that the solver takes; settings that are the default are left out, as in data.

    Args:
        layout: ``style`` and ``template`` that the model was trained with, for those that the options leave open.

    Raises:
        InputError: the solver does not take it, or its prompt cannot be made.
    """
    operators = rules.operators(options.operators)
    solver.check_puzzle(Puzzle(tuple(numbers), target, rules.rule(options.rule), operators))
    defaults = {"rule": rules.DEFAULT_RULE, "operators": rules.OPERATORS, "style": CountdownRow.styles[0]}
    own = {"style": options.style, "template": options.template}
    layout = {**(layout or {}), **{key: value for key, value in own.items() if value is not None}}
    settings = {"rule": options.rule, "operators": operators, **layout}
    changed = {key: value for key, value in settings.items() if value != defaults.get(key)}
    row = CountdownRow({"nums": numbers, "target": target} | changed)
    row.prompt()
    return row


def ask(
    loaded: load.Loaded | OpenAI, row: CountdownRow, options: AskOptions, on_text: Callable[[str], None] | None = None
) -> Completion:
    """Complete *row* as an evaluation does.

    Args:
        on_text: called with each piece of the completion as soon as it can be decoded.

    Raises:
        ModelError: the prompt fills the model's context, or the server failed.
    """
    if isinstance(loaded, OpenAI):
        stream = _TextStream(None, on_text)
        completion = loaded.stream(loaded.prompt(row), stream.write)
        stream.write(completion.text)
        return completion
    prompt = chat_template.Rendered(chat_template.render(loaded.tokenizer, row.messages()), row.prompt().prefill)
    (ids,) = chat_template.token_ids(loaded.tokenizer, [prompt.text])
    limit = options.max_new_tokens
    if (context := ModelShape.of(loaded.model.config).context_length) is not None:
        limit = min(limit, context - len(ids))
    if limit <= 0:
        raise ModelError(
            f"the model reads {context} tokens, and the prompt alone takes {len(ids)}; give it a shorter one."
        )
    generator = Generator(loaded, replace(Decoding.of(options), max_new_tokens=limit))
    stream = _TextStream(Stop(loaded.tokenizer, loaded.model, STOP), on_text, prompt.completion(row.style, ""))
    generator.on_step = lambda tokens: stream.add(tokens[-1])
    (completion,) = generator.complete([ids])
    stream.write(completion.text)
    return completion.after(row, prompt.text)


class _TextStream:
    """Decodes tokens into text as they come. A character of several tokens is written when it is complete."""

    def __init__(self, stop: Any, on_text: Callable[[str], None] | None, begun: str = "") -> None:
        self._stop, self._on_text, self._begun = stop, on_text or (lambda piece: None), begun
        self._ids: list[int] = []
        self._written = ""

    def add(self, token: int) -> None:
        self._ids.append(token)
        text = self._stop.decode(self._ids)
        if not text.endswith("\ufffd"):
            self.write(text)

    def write(self, text: str) -> None:
        """Write what *text*, the completion so far, has beyond what was written."""
        if len(text) > len(self._written):
            self._on_text(self._begun + text[len(self._written) :])
            self._written, self._begun = text, ""
