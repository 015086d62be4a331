"""Loading: from a model reference to a model and its tokenizer, on a device and in a precision.

``nf4`` means the 4-bit weights of QLoRA. On CUDA, bitsandbytes computes with them if they matter
for memory. Else, and on a CPU, each linear layer holds the values of NF4 de-quantized once: the
same function with correct gradients and at full speed, without the saving of memory.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from countdown_rl.core.errors import ModelError
from countdown_rl.models import formats, model_files, shape
from countdown_rl.models.protocols import CausalLM, Tokenizer
from countdown_rl.models.reference import ModelRef, local_path, without_weights

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

#: On a CPU, "auto" computes models of up to so many parameters in fp32, larger ones in bf16.
MAX_FP32_PARAMETERS = 20_000_000

_DEVICE_FILES = Path("/dev")


@dataclass
class Loaded:
    """A model ready to run; *storage* is "bitsandbytes-nf4", "dequantized-nf4" or "plain"."""

    model: CausalLM = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    ref: ModelRef
    precision: str
    device: str
    storage: str


def load_tokenizer(ref: ModelRef) -> Tokenizer:
    """Load the tokenizer of *ref*, with left padding, by the end-of-text token if it has no own."""
    from transformers import AutoTokenizer

    path = local_path(ref)
    if ref.base is not None and not (path / "tokenizer_config.json").is_file():
        return load_tokenizer(ref.base)
    if path.is_dir() and not any((path / name).is_file() for name in model_files.VOCABULARIES):
        raise ModelError(
            f"{ref.source} has no tokenizer files; copy those of its base model there."
        )
    # From a GGUF file transformers reads few pre-tokenizers: tokenizer.json beside it is preferred.
    if path.is_file() and (path.parent / "tokenizer.json").is_file():
        path = path.parent
    tokenizer = model_files.from_pretrained(
        AutoTokenizer, path, trust_remote_code=ref.trust_remote_code
    )
    for key in ("is_local", "local_files_only", "trust_remote_code"):  # not to be saved with it
        tokenizer.init_kwargs.pop(key, None)
    if isinstance(tokenizer.chat_template, dict):  # several, by name
        with model_files.failures_of_libraries(f"{ref.source} has no default chat template"):
            tokenizer.chat_template = tokenizer.get_chat_template()
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise ModelError(
            f"the tokenizer of {ref.source} has neither a pad token nor an end-of-text token."
        )
    return tokenizer


def load_model(
    ref: ModelRef,
    *,
    precision: str = "auto",
    device: str = "auto",
    trainable: bool = False,
    sharded: bool = False,
    plain: bool | None = None,
) -> Loaded:
    """Load a model and its tokenizer.

    Args:
        ref: what to load; an adapter on its base.
        precision: "nf4", "bf16", "fp16", "fp32", or "auto": bf16 on a GPU, or fp16 if it has no
            bf16; on a CPU fp32 for small models and bf16 for large ones. A 4-bit checkpoint stays
            4-bit, and the base of an adapter gets the precision that it was trained in.
        device: "auto" or a type of torch.
        trainable: the adapter's weights require gradients.
        sharded: leaves the weights in main memory, from where FSDP gives each GPU its part.
        plain: plain layers hold NF4 values on a GPU: they need no de-quantization and launch fewer
            kernels. The default if they take under half of its memory in bf16.

    Raises:
        ModelError: the model cannot be loaded, or computes logits that are not finite.
    """
    import torch

    from countdown_rl.models import lora

    # Its attention returns NaN gradients under a mask at lengths of 64 modulo 128 (pytorch issue
    # 196678, torch 2.11 to 2.13 on Hopper), other bits in each run, and plans a shape for 30 ms.
    torch.backends.cuda.enable_cudnn_sdp(False)
    precision = trained_precision(ref, precision)
    with model_files.failures_of_libraries(f"{ref.source} cannot be loaded"):
        tokenizer = load_tokenizer(ref)
        target = torch.device(device_name(device))
        home = torch.device("cpu") if sharded else target
        loaded = _load_base(ref.base or ref, tokenizer, precision, target, home, plain)
        if ref.base is not None:
            loaded.model = lora.attach(loaded.model, local_path(ref), trainable=trainable)
            loaded.ref = ref
        rows = len(loaded.model.get_input_embeddings().weight)
        if tokenizer.pad_token_id >= rows:  # no mask shows it to the model
            tokenizer.pad_token = tokenizer.eos_token
        _check_logits(loaded)
    return loaded


def _check_logits(loaded: Loaded) -> None:
    """Raise ModelError if a weight of the model, or a logit of a token, is not finite."""
    import torch

    from countdown_rl.models.checkpoint import check_finite

    for name, weight in loaded.model.named_parameters():
        check_finite(f"{loaded.ref.source}: {name}", weight)
    with torch.no_grad():
        logits = loaded.model(input_ids=torch.tensor([[2, 3]], device=loaded.model.device)).logits
    if not logits.isfinite().all():
        cause = "its weights are damaged"
        if loaded.model.dtype == torch.float16:
            cause = f"they may exceed the range of fp16, so give --precision fp32, or {cause}"
        raise ModelError(f"{loaded.ref.source} computes logits that are not finite; {cause}.")


def trained_precision(ref: ModelRef, precision: str) -> str:
    """Return *precision*; for "auto" that of the adapter's training or of stored 4-bit weights."""
    if precision != "auto":
        return precision
    if ref.base is not None and ref.manifest is not None:
        trained = ref.manifest.facts.get("precision") or ref.manifest.options.get("precision")
        if trained:
            return str(trained)
    base = local_path(without_weights(ref.base or ref))
    in_4_bits = model_files.quantization_config(base).get("load_in_4bit")
    return "nf4" if in_4_bits else precision


def device_name(name: str) -> str:
    """Resolve *name* to a torch device; "auto" is a GPU if there is one."""
    import torch

    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name in ("auto", "cuda") and has_cuda:
        return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    if name == "auto":
        return "mps" if has_mps else "cpu"
    if (name.startswith("cuda") and not has_cuda) or (name == "mps" and not has_mps):
        raise ModelError(
            f"this machine has no {name} device that torch can use; leave --device out."
        )
    return name


def unused_gpu() -> str:
    """Return a warning if torch does not see an NVIDIA GPU that the environment does not hide."""
    import torch

    files = sorted(_DEVICE_FILES.glob("nvidia[0-9]*"))
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1")
    if not files or hidden or torch.cuda.is_available():
        return ""
    return (
        f"torch {torch.__version__} does not see the NVIDIA GPU {files[0]}: the CPU computes; "
        "install a build of torch for its driver (docs/gpu.md)."
    )


def stored_format(ref: ModelRef) -> str:
    """Return the name of the format of *ref* (not an adapter)."""
    return formats.format_of(local_path(without_weights(ref))).name


def compute_dtype(
    precision: str, device: "torch.device", model: "PreTrainedModel"
) -> "torch.dtype":
    """Return the dtype that *model* computes in.

    On a CPU it is fp32 for small models, where it is exact and fast. A GPU without bf16 (Turing)
    computes in fp16, and no other device does.
    """
    import torch

    from countdown_rl.models.torch_internals import has_bf16_products

    if precision == "bf16":
        return torch.bfloat16
    if precision == "fp32":
        return torch.float32
    if device.type == "cuda":
        has_bf16 = precision != "fp16" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bf16 else torch.float16
    if precision == "fp16":
        return torch.float32
    if device.type == "mps":
        return torch.bfloat16
    is_large = model.num_parameters() > MAX_FP32_PARAMETERS
    return torch.bfloat16 if is_large and has_bf16_products() else torch.float32


def dtype_name(dtype: "torch.dtype") -> str:
    """Return the name of a torch *dtype* among the precisions."""
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp")


def _load_base(
    ref: ModelRef,
    tokenizer: Tokenizer,
    precision: str,
    device: "torch.device",
    home: "torch.device",
    plain: bool | None,
) -> Loaded:
    import torch
    from transformers import GenerationConfig

    from countdown_rl.models import nf4

    if precision == "nf4" and device.type == "mps":
        raise ModelError(
            "an Apple GPU has no 4-bit weights; give --precision bf16, or --device cpu."
        )
    native = device.type == "cuda" and precision == "nf4"  # 4-bit layers of bitsandbytes
    if native and plain is None:
        plain = 2 * skeleton(ref).num_parameters() < torch.cuda.mem_get_info(device)[1] / 2
    native = native and not plain
    stored = stored_format(ref)
    dtypes = {"auto": "auto", "fp32": torch.float32, "fp16": torch.float16}
    options = _load_options(local_path(ref), stored, native=native, home=home)
    model = read_weights(ref, dtype=dtypes.get(precision, torch.bfloat16), **options)

    dtype = compute_dtype(precision, device, model)
    storage = "dequantized-nf4" if "nf4" in (stored, precision) else "plain"
    if native:
        storage = "bitsandbytes-nf4"
    elif stored == "nf4":
        model = model.dequantize(dtype)
        model.is_loaded_in_4bit = False  # transformers leaves it, and PEFT and TRL read it
    elif precision == "nf4":
        for module in nf4.linears(model).values():  # in place, in their dtype
            weight = module.weight.data
            if nf4.is_transposed(module):
                weight = weight.T
            weight.copy_(nf4.fake_quantize(weight))
    nf4.cast(model, dtype)
    if not native:
        model = model.to(home)
    model.eval()

    model.config.pad_token_id = tokenizer.pad_token_id
    # The checkpoint's own sampling settings (penalties, beams, stop strings) must not take part.
    model.generation_config = GenerationConfig(eos_token_id=model.generation_config.eos_token_id)
    if precision == "auto":
        precision = dtype_name(dtype)
    return Loaded(model, tokenizer, ref, precision, str(device), storage)


def _load_options(
    path: Path, stored: str, *, native: bool, home: "torch.device"
) -> dict[str, object]:
    """Return the options of ``from_pretrained`` for the weights at *path*, in the format *stored*.

    *native* asks for layers of bitsandbytes, and *home* is the device that holds the weights.
    """
    from transformers import BitsAndBytesConfig, GgufConfig

    from countdown_rl.models import nf4

    if stored == "gguf":
        if native:
            raise ModelError(
                f"{path} is too large for NF4 on this GPU; give --precision bf16, or safetensors."
            )
        config = shape.read_config(path)
        return {"quantization_config": GgufConfig(dequantize=True), "config": config}
    options: dict[str, object] = {}
    if home.type == "cuda":  # straight to the GPU, so that main memory never holds the whole model
        options["device_map"] = {"": home}
    elif stored == "nf4":
        options["device_map"] = {"": "cpu"}
    if native and stored != "nf4":
        options["quantization_config"] = BitsAndBytesConfig.from_dict(nf4.CONFIG)
    return options


def skeleton(ref: ModelRef) -> "PreTrainedModel":
    """Return the model of *ref* (not an adapter) on the meta device.

    Raises ModelError if the architecture is unknown, or its tensors are not those of unquantized
    files on this machine.
    """
    if ref.kind != "hub" and stored_format(ref) == "full":
        return read_weights(ref, device_map={"": "meta"})
    config = shape.read_config(
        local_path(without_weights(ref)), trust_remote_code=ref.trust_remote_code
    )
    return shape.skeleton(config, trust_remote_code=ref.trust_remote_code)


def read_weights(ref: ModelRef, **options: object) -> "PreTrainedModel":
    """Load the model of *ref* (not an adapter) by transformers with *options*.

    Weights that it does not have (vision towers, heads of other tasks) are left out. Raises
    ModelError if its files lack one.
    """
    from transformers import AutoModelForCausalLM

    model, info = model_files.from_pretrained(
        AutoModelForCausalLM,
        local_path(ref),
        trust_remote_code=ref.trust_remote_code,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are refused by name
        **options,
    )
    mismatched = [name for name, *_ in info["mismatched_keys"]]
    if missing := sorted([*info["missing_keys"], *mismatched]):
        raise ModelError(
            f"{ref.source} is incomplete: {missing[0]} and {len(missing) - 1} more weights are "
            "missing, or of another size than its configuration says."
        )
    return model
