"""A model's architecture without its weights: its configuration, its dimensions, and a skeleton on the meta device."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl.core.errors import ModelError
from countdown_rl.core.formatting import plural
from countdown_rl.models import model_files


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a decoder-only transformer. ``context_length`` is None where the configuration has none."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int | None

    @classmethod
    def of(cls, config: Any) -> "ModelShape":
        """Read the dimensions from a transformers configuration."""
        text = config.get_text_config()
        return cls(
            num_layers=text.num_hidden_layers,
            hidden_size=text.hidden_size,
            intermediate_size=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            num_heads=text.num_attention_heads,
            num_kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
            head_dim=getattr(text, "head_dim", None)
            or text.hidden_size // text.num_attention_heads,
            vocab_size=text.vocab_size,
            context_length=getattr(text, "max_position_embeddings", None),
        )


def check_context(context: int | None, prompt: int, completion: int, option: str) -> None:
    """Check that *prompt* tokens and *completion* more, bounded by *option*, are no more than the *context* length."""
    if context and prompt + completion > context:
        advice = (
            f"lower {option}"
            if prompt < context
            else "shorten the prompt, or use a model with a longer context"
        )
        raise ModelError(
            f"the model reads {context} tokens, but the longest prompt ({prompt}) and {option} ({completion}) need "
            f"{prompt + completion}; {advice}."
        )


def check_tokens(model: Any, prompts: Iterable[Sequence[int]], source: str) -> None:
    """Check that *model*, whose reference is *source*, has an embedding for all token ids of *prompts*."""
    rows, largest = (
        len(model.get_input_embeddings().weight),
        max(map(max, filter(None, prompts)), default=0),
    )
    if largest >= rows:
        advice = (
            "use the tokenizer of these weights, or an adapter that was saved with its embeddings"
        )
        fault = f"gives token id {largest:,}, and its embeddings have {plural(rows, 'row')}"
        raise ModelError(f"the tokenizer of {source} {fault}; {advice}.")


def read_config(path: Path, *, trust_remote_code: bool = False) -> Any:
    """Read the transformers configuration of the checkpoint directory, or GGUF file, at *path*."""
    from transformers import AutoConfig

    config = model_files.from_pretrained(AutoConfig, path, trust_remote_code=trust_remote_code)
    if path.is_file():  # transformers (5.23) does not read the size of a head
        import gguf

        fields = gguf.GGUFReader(path).fields
        key_length = fields.get(f"{fields['general.architecture'].contents()}.attention.key_length")
        if key_length is not None:
            config.head_dim = key_length.contents()
    return config


def skeleton(config: Any, *, trust_remote_code: bool = False) -> Any:
    """Build the model of *config* on the meta device: its parameters have shapes and no values."""
    import torch
    from transformers import AutoModelForCausalLM

    with (
        torch.device("meta"),
        model_files.failures_of_libraries(f"there is no language model of {config.model_type}"),
    ):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
