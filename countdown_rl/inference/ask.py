"""The completion of one row, streamed."""

from collections.abc import Callable
from dataclasses import replace

from countdown_rl.core.errors import ModelError
from countdown_rl.inference.config import AskOptions
from countdown_rl.inference.decoding import Decoding
from countdown_rl.inference.generate import Completion, Generator
from countdown_rl.models import chat_template, load
from countdown_rl.models.shape import ModelShape
from countdown_rl.tasks.task import Row


def ask(loaded: load.Loaded, row: Row, options: AskOptions, on_text: Callable[[str], None] | None = None) -> Completion:
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
