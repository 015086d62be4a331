"""The memory of a recipe on GPUs of 24 and 80 GB, against sums by hand from the published dimensions."""

from typing import NamedTuple

import pytest

from benchmarks import cards


class Sum(NamedTuple):
    """The memory of a recipe in GB (1e9 bytes), with prompts of 256 tokens.

    Attributes:
        base: the weights as they are trained on; *bf16*: in the engine, and in training where there is memory.
        lora: adapter, gradients and two states of Adam: 16 bytes a parameter.
        kept: of the blocks their inputs (gradient checkpointing), and of one block all that its backward pass needs.
        head: a tile of 4,096 logits by 32,768 words, the gradient of the head's inputs, and a de-quantized layer.
        cache: keys and values of all completions of a step, half of them twice, and logits in bf16 and four in fp32.
    """

    base: float
    bf16: float
    lora: float
    kept: float
    head: float
    cache: float


TILE = 4_096 * 32_768 * 2 / 1e9
#: A Llama block: q and o of 4096 x 4096, k and v of 4096 x 1024, gate, up and down of 4096 x 14336; 0.5159 bytes a
#: weight in NF4. Embeddings and head, 128,256 x 4096 each, stay in bf16.
LLAMA_NF4 = 32 * (2 * 16.78 + 2 * 4.19 + 3 * 58.72) / 1e3 * 0.5159 + 2 * 2 * 0.5253
#: Its LoRA parameters per unit of rank.
LLAMA_LORA = 32 * (2 * 8_192 + 2 * 5_120 + 3 * 18_432)
#: Per token: two norms in fp32; q, k, v and the output of attention; gate, its activation, up; the seven inputs of LoRA
#: layers in bf16 with a dropout mask of a byte.
LLAMA_BLOCK = 2 * 4_096 * 4 + 4 * 4_096 * 2 + 3 * 14_336 * 2 + (6 * 4_096 + 14_336) * 3

HAND = {
    "llama-3.1-8b-countdown": Sum(  # 128 completions of 128 tokens to prompts of 256, 8 in the loss, rank 16
        base=LLAMA_NF4,
        bf16=2 * 8.03,
        lora=16 * 16 * LLAMA_LORA / 1e9,
        kept=8 * 384 * (32 * 4_096 * 2 + LLAMA_BLOCK + 384 * 2) / 1e9,
        head=TILE + 8 * 128 * 4_096 * 4 / 1e9 + 58.72 * 2 / 1e3,
        cache=128 * (1.5 * 384 * 32 * 2 * 8 * 128 * 2 + (2 + 4 * 4) * 128_256) / 1e9,
    ),
}
#: GB of a GPU of each card, and GPUs that share the completions.
CARDS = {"24 GB": (25.3, 1), "80 GB": (84.9, 1), "8 × 80 GB": (84.9, 8)}


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("recipe", HAND)
def test_the_memory_of_a_recipe_is_the_sum_by_hand(recipe, card):
    hand, (available, count) = HAND[recipe], CARDS[card]
    held, cache = (hand.bf16 if available > 80 else hand.base) + hand.lora, hand.cache / count
    training, engine, name = held + hand.kept + hand.head, 0.0, "vllm"
    share = 0.3 * available  # TRL's default
    if (
        hand.bf16 < share and 1.1 * training + share + 1.07 < available
    ):  # a margin of a tenth and a GiB
        engine = share
    else:
        name, training = "transformers", held + max(hand.kept + hand.head, cache)

    plan = cards.plan(cards.RECIPES[recipe], cards.recipe_options(recipe), cards.CARDS[card])
    (estimate,) = plan.memory.estimates
    assert plan.engine == name
    assert plan.memory.fits == (1.1 * training + engine + 1.07 < available + 0.1)
    assert estimate.training / 1e9 == pytest.approx(training, rel=0.1)
    assert estimate.engine / 1e9 == pytest.approx(engine, rel=0.1)
