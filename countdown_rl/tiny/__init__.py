"""``countdown-tiny``, the model that ships with the package: weights, tokenizer, and the manifest that says how it was made."""
