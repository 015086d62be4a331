"""Token ids of demonstrations, as in inference, and their packing."""

import copy
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from countdown_rl.core.errors import InputError, UsageError, first_line
from countdown_rl.core.formatting import plural
from countdown_rl.models import chat_template, ends, load
from countdown_rl.training.options import SftOptions
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


def dataset(examples: list[dict[str, list[int]]], options: SftOptions) -> Any:
    """The data set of *examples*, packed if *options* say so."""
    import datasets
    from trl import pack_dataset

    rows = datasets.Dataset.from_list(examples)
    return (
        pack_dataset(rows.shuffle(seed=options.seed), options.max_length)
        if options.packing
        else rows
    )


def check_packing(config: PretrainedConfig, *, trust_remote_code: bool = False) -> None:
    """UsageError unless packed samples can be read in a model of *config* and, in two random layers, not each other."""
    from transformers import AutoModelForCausalLM
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    samples = list(range(1, 13)), list(range(20, 30))
    device = load.device_name("auto")
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(0)
            settings: dict[str, Any] = {
                "dtype": torch.float32,
                "trust_remote_code": trust_remote_code,
            }
            model = AutoModelForCausalLM.from_config(_shallow(config), **settings)
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=parameter.shape[-1] ** -0.5)
            model.to(device).eval()
            alone = [
                model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0]
                for ids in samples
            ]
            rows = [{"input_ids": ids, "labels": ids} for ids in samples]
            batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(rows)
            del batch["labels"]
            inputs = {
                name: value.to(device) if hasattr(value, "to") else value
                for name, value in batch.items()
            }
            packed = model(**inputs, use_cache=False).logits[0]
    except Exception as error:  # each architecture has its own
        raise UsageError(
            f"{config.model_type} does not allow --packing: {first_line(error)}."
        ) from error
    expected = torch.cat(alone)
    if not (packed - expected).abs().max() < 1e-2 * expected.std():
        raise UsageError(
            f"packed samples would see each other in {config.model_type}; leave --packing out."
        )


def _shallow(config: PretrainedConfig) -> PretrainedConfig:
    """*config* with two layers and 64 tokens."""
    shallow = copy.deepcopy(config)
    text = shallow.get_text_config()
    layers, depth = text.num_hidden_layers, min(2, text.num_hidden_layers)
    for name, value in vars(text).items():
        if isinstance(value, list) and len(value) == layers:  # one value per layer
            setattr(text, name, value[:depth])
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = depth, 64, 0
    return shallow
