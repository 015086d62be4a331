"""The part of ``make gpu`` that needs a real vLLM engine, in small shapes."""

import json
import subprocess
import sys

from tests.support.vllm_engine import MARKS, ROOT

pytestmark = MARKS


def test_a_part_measures_the_engine(tmp_path):
    part = "vllm-rollouts"
    words = ("-m", "benchmarks.gpu", part, "--tiny", "--out", tmp_path)
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.split() == [part, "done"]
    result = json.loads((tmp_path / f"gpu-{part}.json").read_text())
    assert result["seconds"] > 0
    assert max(result["gradient_norms"]) > 0
