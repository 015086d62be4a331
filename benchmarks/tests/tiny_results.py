"""The results of ``make gpu-tiny``, which runs these tests after it has written them."""

import json
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "build" / "gpu"


def result(part):
    return json.loads((RESULTS / f"gpu-{part}.json").read_text())


def test_parts_give_their_figures_with_tiny_shapes_on_a_cpu():
    assert result("gradients")["relative_difference"] < 0.01  # in bf16 where the processor has it
    recipe = result("recipe-llama-3.1-8b-countdown")
    assert recipe["logit_difference"] < 0.1
    assert min(recipe["graphs"]["gradient_norms"]) > 0
    speeds = result("decode")
    assert (
        len(
            [
                row
                for row in speeds.values()
                if isinstance(row, dict) and row.get("logit_difference", 1) < 0.1
            ]
        )
        == 6
    )
