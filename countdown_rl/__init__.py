"""Post-train a language model with GRPO on the Countdown numbers puzzle, from data to a published model."""

import os

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # before any import of huggingface_hub, which TRL reports with

__version__ = "0.1.0"
