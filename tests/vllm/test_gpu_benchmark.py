"""The parts of ``make gpu`` that need vLLM, in small shapes on the CPU."""

import json

import pytest

from benchmarks import bench, gpu
from tests.support.vllm_engine import MARKS

pytestmark = MARKS


@pytest.mark.parametrize("part", ["vllm", "vllm-rollouts"])
def test_a_part_with_vllm_gives_its_figures(tmp_path, monkeypatch, part):
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    # In a process of its own, as an engine keeps its process group.
    assert gpu.run_all([part], ["--tiny", "--out", str(tmp_path)]) == {part: "done"}  # neither failed nor skipped
    result = json.loads((tmp_path / f"gpu-{part}.json").read_text())
    speed = result["tokens_a_second"]
    assert (speed["generation"] if part == "vllm-rollouts" else speed) > 0
    assert result["tiny"]
