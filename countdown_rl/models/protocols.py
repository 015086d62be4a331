"""Tokenizer and model of transformers, by the attributes and methods that this package uses."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend
    from transformers import BatchEncoding, GenerationConfig, PretrainedConfig
    from transformers.utils import ModelOutput


class Tokenizer(Protocol):
    """A tokenizer (``PreTrainedTokenizerBase``), with a pad token as ``load_tokenizer`` sets it."""

    name_or_path: str
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    eos_token_id: int | None
    pad_token: str | None
    pad_token_id: int
    unk_token: str
    unk_token_id: int | None
    added_tokens_decoder: Mapping[int, "AddedToken"]
    backend_tokenizer: "Backend"

    def __len__(self) -> int:
        """Return the number of tokens, added ones included."""

    def __call__(self, text: str | Sequence[str], **options: object) -> "BatchEncoding":
        """Encode a text, or each of several; with special tokens unless *options* say otherwise."""

    def decode(self, token_ids: Sequence[int], **options: object) -> str:
        """Return the text of *token_ids*."""

    def pad(self, inputs: Mapping[str, object], **options: object) -> "BatchEncoding":
        """Pad rows of token ids on the left to one length."""

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens of *ids*."""

    def get_vocab(self) -> Mapping[str, int]:
        """Return the id of each token."""

    def apply_chat_template(self, turns: Sequence[object], **options: object) -> str:
        """Return the text of *turns* by the chat template."""

    def save_pretrained(self, directory: object) -> object:
        """Write the files of the tokenizer."""


class CausalLM(Protocol):
    """A language model: a ``PreTrainedModel``, or a ``PeftModel`` over one."""

    config: "PretrainedConfig"
    generation_config: "GenerationConfig"
    device: "torch.device"
    dtype: "torch.dtype"
    all_tied_weights_keys: Mapping[str, str]

    def __call__(self, *inputs: object, **options: object) -> "ModelOutput":
        """Compute logits."""

    def generate(self, **options: object) -> "torch.Tensor":
        """Return the token ids (B, S) of prompts and completions."""

    def get_input_embeddings(self) -> "torch.nn.Module":
        """Return the embedding of tokens."""

    def get_output_embeddings(self) -> "torch.nn.Module":
        """Return the layer that computes logits."""

    def modules(self) -> Iterator["torch.nn.Module"]:
        """Yield the model and all layers within it."""

    def num_parameters(self) -> int:
        """Return the number of values in all weights."""

    def parameters(self) -> Iterator["torch.nn.Parameter"]:
        """Yield the weights."""

    def named_parameters(self) -> Iterator[tuple[str, "torch.nn.Parameter"]]:
        """Yield the weights with their names."""
