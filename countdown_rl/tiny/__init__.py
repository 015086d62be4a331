"""``countdown-tiny``, the model that ships with the package.

Weights, tokenizer, and the ``manifest.json`` that says how they were made: its options are the flags of
``countdown-rl warmup``, and its input those of the ``countdown-rl gen-data`` before it.
"""
