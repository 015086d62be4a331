"""Token ids of demonstrations, as in inference."""

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from countdown_rl.models import chat_template, ends
from countdown_rl.training.sft.demonstrations import Demonstration


def start_of_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """The text that *tokenizer* puts before every other, such as a begin-of-text token."""
    alone = tokenizer("a", add_special_tokens=False)["input_ids"]
    ids = tokenizer("a")["input_ids"]
    starts = (index for index in range(len(ids)) if ids[index : index + len(alone)] == alone)
    return str(tokenizer.decode(ids[: next(starts, 0)]))


def tokenize(
    demonstrations: Sequence[Demonstration], tokenizer: PreTrainedTokenizerBase
) -> list[dict[str, list[int]]]:
    """Return the token ids of each demonstration, with labels of -100 for those of the prompt.

    Prompt and completion are encoded one by one, as in inference. A completion ends with the end of
    its turn.
    """
    start = start_of_text(tokenizer)
    end = ends.learned_end(tokenizer)
    texts = filter(None, (ends.end_of_turn(tokenizer), tokenizer.eos_token))
    written_ends = rf"((?:{'|'.join(map(re.escape, texts))})\s*)+\Z"  # of the turn, already there
    prompts = []
    completions = []
    for demonstration in demonstrations:
        if isinstance(demonstration.prompt, str):
            prompt = chat_template.Rendered(start + demonstration.prompt.removeprefix(start))
        else:
            last = demonstration.prompt[-1]
            prefill = last["content"] if last["role"] == "assistant" else ""
            rendered = chat_template.render(tokenizer, demonstration.prompt)
            prompt = chat_template.Rendered(rendered, prefill)
        prompts.append(prompt.text)
        completion = prompt.continuation(demonstration.completion)
        completions.append(re.sub(written_ends, "", completion) + end)
    examples = []
    prompt_ids = chat_template.token_ids(tokenizer, prompts)
    completion_ids = chat_template.token_ids(tokenizer, completions)
    for before, learned in zip(prompt_ids, completion_ids, strict=True):
        examples.append({"input_ids": before + learned, "labels": [-100] * len(before) + learned})
    return examples
