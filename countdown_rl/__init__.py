"""Post-train a language model with GRPO on the Countdown numbers puzzle, from data to a published model."""

import os

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # before any import of huggingface_hub, which TRL reports with


def __getattr__(name: str) -> str:
    """Return ``__version__``, which is only read when it is asked for: that takes as long as a third of ``--help``."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("countdown-rl")
    except PackageNotFoundError:  # a copy that is not installed
        return "unknown"
