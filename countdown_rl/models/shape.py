"""A model's architecture without its weights: configuration, dimensions, and skeleton."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from countdown_rl.core.errors import ModelError
from countdown_rl.core.formatting import plural
from countdown_rl.models import model_files
from countdown_rl.models.protocols import CausalLM

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a decoder-only transformer; ``context_length`` is None if it has no limit."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int | None

    @classmethod
    def of(cls, config: "PretrainedConfig") -> "ModelShape":
        """Read the dimensions from a transformers configuration."""
        text = config.get_text_config()
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        return cls(
            num_layers=text.num_hidden_layers,
            hidden_size=text.hidden_size,
            intermediate_size=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            num_heads=text.num_attention_heads,
            num_kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
            head_dim=head_dim,
            vocab_size=text.vocab_size,
            context_length=getattr(text, "max_position_embeddings", None),
        )


def check_context(context: int | None, prompt: int, completion: int, option: str) -> None:
    """Check that *prompt* tokens and *completion* more, bounded by *option*, fit in *context*."""
    total = prompt + completion
    if not context or total <= context:
        return
    advice = f"lower {option}"
    if prompt >= context:
        advice = "shorten the prompt, or use a model with a longer context"
    raise ModelError(
        f"the model reads {context} tokens, but the longest prompt ({prompt}) and {option} "
        f"({completion}) need {total}; {advice}."
    )


def check_tokens(model: CausalLM, prompts: Iterable[Sequence[int]], source: str) -> None:
    """Check that *model*, which *source* names, has an embedding for all token ids of *prompts*."""
    rows = len(model.get_input_embeddings().weight)
    largest = max(map(max, filter(None, prompts)), default=0)
    if largest >= rows:
        raise ModelError(
            f"the tokenizer of {source} gives token id {largest:,}, and its embeddings have "
            f"{plural(rows, 'row')}; use the tokenizer of these weights, or an adapter that was "
            "saved with its embeddings."
        )


def read_config(path: Path, *, trust_remote_code: bool = False) -> "PretrainedConfig":
    """Read the transformers configuration of the checkpoint directory, or GGUF file, at *path*."""
    from transformers import AutoConfig

    config = model_files.from_pretrained(AutoConfig, path, trust_remote_code=trust_remote_code)
    if path.is_file():  # transformers (5.23) does not read the size of a head
        import gguf

        fields = gguf.GGUFReader(path).fields
        architecture = fields["general.architecture"].contents()
        key_length = fields.get(f"{architecture}.attention.key_length")
        if key_length is not None:
            config.head_dim = key_length.contents()
    return config


def skeleton(config: "PretrainedConfig", *, trust_remote_code: bool = False) -> "PreTrainedModel":
    """Build the model of *config* on the meta device: its parameters have shapes and no values."""
    import torch
    from transformers import AutoModelForCausalLM

    with (
        torch.device("meta"),
        model_files.failures_of_libraries(f"there is no language model of {config.model_type}"),
    ):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
