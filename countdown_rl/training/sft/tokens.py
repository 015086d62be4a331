"""Token ids of demonstrations, as in inference."""

from transformers import PreTrainedTokenizerBase

from countdown_rl.core.errors import InputError
from countdown_rl.core.formatting import plural
from countdown_rl.models import chat_template, ends
from countdown_rl.training.sft.demonstrations import Demonstrations


def start_of_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """The text that *tokenizer* puts before every other, such as a begin-of-text token."""
    alone, ids = (
        tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True)
    )
    start = next(
        (index for index in range(len(ids)) if ids[index : index + len(alone)] == alone), 0
    )
    return str(tokenizer.decode(ids[:start]))


def tokenize(
    known: Demonstrations, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> list[dict[str, list[int]]]:
    """Token ids of each demonstration as ``input_ids``, and as ``labels`` with -100 for those of the prompt.

    Prompt and completion are encoded one by one, as in inference. A completion ends with the end of its turn. A
    baseline's demonstrations that are longer than *max_length* are skipped.

    Raises InputError if another one is longer than *max_length*, or none is left.
    """
    start, end = start_of_text(tokenizer), ends.learned_end(tokenizer)
    written_ends = [text for text in (ends.end_of_turn(tokenizer), tokenizer.eos_token) if text]
    prompts, completions = [], []
    for demonstration in known.filtered:
        if isinstance(demonstration.prompt, str):
            prompt = chat_template.Rendered(start + demonstration.prompt.removeprefix(start))
        else:
            *_, last = demonstration.prompt
            prefill = last["content"] if last["role"] == "assistant" else ""
            prompt = chat_template.Rendered(
                chat_template.render(tokenizer, demonstration.prompt), prefill
            )
        prompts.append(prompt.text)
        text = prompt.continuation(demonstration.completion)
        while written := next(
            (each for each in written_ends if text.rstrip().endswith(each)), None
        ):
            text = text.rstrip().removesuffix(written)
        completions.append(text + end)
    encoded = (chat_template.token_ids(tokenizer, texts) for texts in (prompts, completions))
    examples, filtered = [], []
    for demonstration, prompt_ids, ids in zip(known.filtered, *encoded, strict=True):
        length = len(prompt_ids) + len(ids)
        if length <= max_length:
            filtered.append(demonstration)
            examples.append(
                {"input_ids": prompt_ids + ids, "labels": [-100] * len(prompt_ids) + ids}
            )
        elif demonstration.generated:
            known.left_out["too long"] += 1
        else:
            raise InputError(
                f"{demonstration.place}: prompt and completion have {plural(length, 'token')}, more than "
                f"--max-length {max_length}; raise it, or remove that row."
            )
    if known.filtered and not filtered:
        raise InputError(f"all demonstrations are longer than --max-length {max_length}; raise it.")
    known.filtered = filtered
    return examples
