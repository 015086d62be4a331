"""GRPO, in the order of a step.

``prompts``: a sampler chooses the rows of a round, one prompt a group.
``trainer``: one step: sample, grade, reward, advantages, loss, log. ``round`` has its results.
``policy``: log-probabilities, micro-batches and evaluations. ``loss``: a loss of the user's own.
``engines``, ``vllm``: what completes prompts with the present policy.
``rewards``: functions of grade and row.
``advantages``: rewards relative to their group.
``callback``: samples and warnings beside the log; ``warnings`` says what its rows mean so far.
``run``: prepares all of it. ``probe`` asks before training.
"""
