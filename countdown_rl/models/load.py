"""From a model reference to a loaded model and tokenizer, on the right device and in the right precision.

``nf4`` means the 4-bit weights of QLoRA. On CUDA bitsandbytes computes with them as they are. On the
CPU each linear layer keeps the values that NF4 would hold, de-quantized once: the same function with
right gradients and at full speed, without the saving of memory.
"""

import logging
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl.errors import CountdownError, ModelError, UsageError
from countdown_rl.models.chat_template import render
from countdown_rl.models.reference import ModelRef, files, resolve

__all__ = ["Loaded", "ModelRef", "load", "load_tokenizer", "quiet", "render", "resolve"]

PRECISIONS = ("auto", "nf4", "bf16", "fp32")

#: Up to this many parameters a CPU computes in fp32; above it, in bf16 where the CPU can (see `compute_dtype`).
FP32_UP_TO = 20_000_000


@dataclass
class Loaded:
    """A model ready to run. ``path`` says how its weights are held: "bitsandbytes-nf4", "dequantized-nf4",
    "dequantized-w4a16" or "plain"; ``precision`` is what was settled on, ``note`` what a person should know
    about that."""

    model: Any
    tokenizer: Any
    ref: ModelRef
    precision: str
    device: str
    path: str
    note: str = ""


def quiet() -> None:
    """Silence what the libraries say while they load and run: progress bars, warnings, advice."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore")
    for name in (
        "transformers",
        "datasets",
        "bitsandbytes",
        "huggingface_hub",
        "peft",
        "trl",
        "accelerate",
        "torch",
    ):
        logging.getLogger(name).setLevel(logging.ERROR)
    from functools import partialmethod

    import datasets
    import tqdm  # type: ignore[import-untyped]
    import transformers
    from huggingface_hub.utils import disable_progress_bars

    # Some bars, GGUF loading's for one, heed no setting of their library.
    tqdm.tqdm.__init__ = partialmethod(tqdm.tqdm.__init__, disable=True)
    disable_progress_bars()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def load_tokenizer(ref: ModelRef) -> Any:
    """The tokenizer of *ref*, padding on the left, with a pad token (the end-of-text one where it has none).

    Raises:
        ModelError: there is none, or it cannot be read.
    """
    from transformers import AutoTokenizer

    path = files(ref)
    if ref.base is not None and not (path / "tokenizer_config.json").is_file():
        return load_tokenizer(ref.base)
    try:
        if path.is_file() and not (path.parent / "tokenizer.json").is_file():
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        elif path.is_file():  # transformers reads out of GGUF no more than the best-known ways to split text
            tokenizer = AutoTokenizer.from_pretrained(path.parent, local_files_only=True)
        else:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # every tokenizer format fails in its own way
        raise ModelError(f"the tokenizer of {ref.source} cannot be read: {_first_line(error)}") from error
    for key in ("is_local", "local_files_only"):  # how it was loaded here is nothing to save with it
        tokenizer.init_kwargs.pop(key, None)
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ModelError(f"the tokenizer of {ref.source} has neither a pad token nor an end-of-text token.")
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load(
    ref: ModelRef,
    *,
    precision: str = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
    trainable: bool = False,
    plain: bool = False,
) -> Loaded:
    """Load *ref* in *precision* ("auto", "nf4", "bf16" or "fp32") on *device* ("auto", "cpu", "cuda", "mps").

    "auto" takes bf16 on a GPU and on the CPU fp32 for small models, bf16 for large ones; a 4-bit
    checkpoint stays 4-bit; an adapter's base is held as it was when the adapter was trained. With
    *trainable* the adapter's own weights can be trained on; with *plain* NF4 values are held in plain
    layers on a GPU as well.

    Raises:
        ModelError: the weights cannot be loaded, or not all of them are there.
        UsageError: there is no such precision.
    """
    import torch

    if precision not in PRECISIONS:
        raise UsageError(f"--precision {precision} is none of: {', '.join(PRECISIONS)}.")
    target = torch.device(device_name(device))
    try:
        if ref.base is not None:
            return _adapter(ref, ref.base, precision, target, trust_remote_code, trainable, plain)
        tokenizer = load_tokenizer(ref)
        return _base(ref, tokenizer, precision, target, trust_remote_code, plain)
    except (CountdownError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a damaged file, a missing tensor, an unknown architecture: many libraries
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"{ref.source} needs code of its own to run; read that code, then give --trust-remote-code."
            ) from error
        raise ModelError(f"{ref.source} cannot be loaded: {_first_line(error)}") from error


def device_name(name: str) -> str:
    """The device that *name* means here; "auto" takes a GPU where there is one.

    Raises:
        ModelError: this machine has no such device.
    """
    import torch

    if name in ("auto", "cuda") and torch.cuda.is_available():
        return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError("this machine has no CUDA device that torch can use; leave --device out.")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ModelError("this machine has no Apple GPU that torch can use; leave --device out.")
    if name == "auto":
        return "mps" if torch.backends.mps.is_available() else "cpu"
    return name


def _adapter(
    ref: ModelRef,
    base: ModelRef,
    precision: str,
    device: Any,
    trust_remote_code: bool,
    trainable: bool,
    plain: bool,
) -> Loaded:
    from peft import PeftModel

    if precision == "auto" and ref.manifest is not None:
        precision = ref.manifest.facts.get("precision") or ref.manifest.options.get("precision", "auto")
    loaded = _base(base, load_tokenizer(ref), precision, device, trust_remote_code, plain)
    loaded.model = PeftModel.from_pretrained(loaded.model, files(ref), is_trainable=trainable, use_safetensors=True)
    loaded.model.eval()
    loaded.ref = ref
    return loaded


def _base(ref: ModelRef, tokenizer: Any, precision: str, device: Any, trust_remote_code: bool, plain: bool) -> Loaded:
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, CompressedTensorsConfig

    from countdown_rl.models import nf4, w4a16

    path = files(ref)
    quantized = path.is_dir() and is_4bit(path, ref)
    integers = path.is_dir() and w4a16.is_held_in(path)
    if integers and precision == "nf4":
        raise ModelError(f"{ref.source} is in 4 bits already, as W4A16; leave --precision nf4 out.")
    cuda, note = device.type == "cuda", ""
    if device.type == "mps" and (precision == "nf4" or (quantized and precision == "auto")):
        note = "4-bit weights are not to be had on an Apple GPU; going on in bf16."
        precision = "bf16"
    if precision == "auto" and quantized:
        precision = "nf4"
    options: dict[str, Any] = {
        "use_safetensors": True,
        "trust_remote_code": trust_remote_code,
        "output_loading_info": True,
        "dtype": "auto",
    }
    where: Path = path
    native = cuda and precision == "nf4" and not plain
    if path.is_file():
        from transformers import GgufConfig

        where = path.parent
        options |= {"gguf_file": path.name, "quantization_config": GgufConfig(dequantize=True)}
    elif integers:
        w4a16.check_installed()
        options["quantization_config"] = CompressedTensorsConfig(dequantize=True)
    elif native and not quantized:
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    if precision in ("nf4", "bf16"):
        options["dtype"] = torch.bfloat16
    elif precision == "fp32":
        options["dtype"] = torch.float32
    if cuda and not path.is_file():
        options["device_map"] = {"": device}  # straight to the GPU, so the host never holds the whole model
    elif quantized:
        options["device_map"] = {"": "cpu"}
    model, info = AutoModelForCausalLM.from_pretrained(where, **options)
    missing = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if missing:
        raise ModelError(f"{ref.source} is incomplete: {missing[0]} and {len(missing) - 1} more weights are missing.")

    dtype = compute_dtype(precision, device, model)
    if native:
        if path.is_file():
            nf4.to_bitsandbytes(model, device)
        held = "bitsandbytes-nf4"
    else:
        if quantized:
            nf4.to_plain(model, dtype)
        elif precision == "nf4":
            nf4.round_in_place(model)
        held = "dequantized-nf4" if quantized or precision == "nf4" else "dequantized-w4a16" if integers else "plain"
        nf4.cast(model, dtype)
        model = model.to(device)
    model.eval()
    model.config.pad_token_id = tokenizer.pad_token_id
    settled = precision if precision != "auto" else {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]
    return Loaded(model, tokenizer, ref, settled, str(device), held, note)


def is_4bit(path: Path, ref: ModelRef) -> bool:
    """Whether the checkpoint at *path* is a bitsandbytes 4-bit one.

    Raises:
        ModelError: it is quantized in another way.
    """
    from transformers import AutoConfig

    from countdown_rl.models import w4a16

    if w4a16.is_held_in(path):
        return False
    config = AutoConfig.from_pretrained(path, local_files_only=True)
    recipe = getattr(config, "quantization_config", None)
    if recipe is None:
        return False
    recipe = recipe if isinstance(recipe, dict) else recipe.to_dict()
    if not recipe.get("load_in_4bit"):
        raise ModelError(
            f"{ref.source} is quantized with {recipe.get('quant_method', 'an unknown method')}, which is not "
            "read here; give a bitsandbytes 4-bit or W4A16 checkpoint, or an unquantized one."
        )
    return True


def compute_dtype(precision: str, device: Any, model: Any) -> Any:
    """The type to compute in; on a CPU fp32 for small models, where it is exact and fast."""
    import torch

    if precision in ("bf16", "fp32"):
        return torch.bfloat16 if precision == "bf16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    if device.type == "mps":
        return torch.bfloat16
    large = model.num_parameters() > FP32_UP_TO
    return torch.bfloat16 if large and torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


def _first_line(error: Exception) -> str:
    text = " ".join((str(error).strip() or type(error).__name__).split("\n")[0].split())
    return text if text.endswith(".") else text + "."
