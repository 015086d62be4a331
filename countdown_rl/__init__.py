"""Post-train a language model with GRPO on the Countdown numbers puzzle, from data to a published model."""

__version__ = "0.1.0"
