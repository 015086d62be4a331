"""What the command line turns off of the libraries under it: telemetry, progress bars, and logs
below errors.
"""

import logging
import os
import warnings

_SETTINGS = {
    "HF_HUB_DISABLE_TELEMETRY": "1",  # TRL reports with huggingface_hub
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}
_LIBRARIES = (
    "accelerate",
    "bitsandbytes",  # PEFT imports it, and with AVX-512 it logs while imported
    "datasets",
    "huggingface_hub",
    "peft",
    "torch",
    "transformers",
    "trl",
)


def silence_libraries() -> None:
    """Silence the libraries of this process, unless the environment sets otherwise; call it before
    they are loaded.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=rf"({'|'.join(_LIBRARIES)})(\.|$)")
