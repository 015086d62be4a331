"""Training: ``run`` is the life of a run, ``grpo`` and ``sft`` what each adds; the other modules serve both."""
