"""Training: ``prepared`` checks a run and ``run`` is its life; ``grpo`` and ``sft`` are what each adds."""
