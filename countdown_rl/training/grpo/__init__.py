"""GRPO, in the order of a step.

``prompts``: a sampler chooses the rows of a round, one prompt a group.
``rollouts``: an engine (``vllm``, ``vllm_internals``, a decoder, transformers) completes them; each is graded.
``rewards``: functions of grade and row, called by TRL on the round.
``advantages``: rewards relative to their group.
``trainer``: the round as micro-batches, without rows that have no gradient.
``trl``, ``trl_internals``: TRL's configuration and trainer, which computes the loss and steps the optimizer.
``warnings``: what the rows of the log say about the run so far; ``probe`` asks before training.
``run``: prepares and runs all of it. The log, checkpoints and validation are shared with ``sft``, one folder up.
"""
