"""verl's own classes on an exported directory: data set, reward manager and configuration. Run in an environment
with verl, see tests/extras.py: ``python verl_check.py DIR``.
"""

import asyncio
import json
import re
import sys
from pathlib import Path

import numpy as np
import torch
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.utils.dataset.rl_dataset import RLHFDataset

import countdown_rl

TOKENIZER = Path(countdown_rl.__file__).parent / "assets/countdown_tiny"


async def rewards_of(texts, item, tokenizer, score) -> list[dict]:
    manager = NaiveRewardManager(OmegaConf.create({}), tokenizer, score)  # keeps the running loop
    names = ("data_source", "reward_model", "extra_info")
    others = {name: np.array([item[name]], dtype=object) for name in names}
    results = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        mask = torch.ones(1, len(ids) + 3, dtype=torch.long)
        tensors = {"responses": torch.tensor([ids]), "attention_mask": mask}
        data = DataProto.from_dict(tensors=tensors, non_tensors=others)
        results.append(await manager.run_single(data))
    return results


def check_rows(export: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    options = {
        "cache_dir": str(export / "cache"),
        "max_prompt_length": 512,
        "filter_overlong_prompts_workers": 1,
    }
    for split in ("train", "valid"):
        dataset = RLHFDataset(
            str(export / f"{split}.parquet"), tokenizer, OmegaConf.create(options)
        )
        item = dataset[0]
        row = json.loads(item["reward_model"]["ground_truth"])
        assert len(dataset) > 1
        assert str(row["target"]) in str(item["raw_prompt"])
    function = {"path": str(export / "reward.py"), "name": "compute_score"}
    score = get_custom_reward_fn(OmegaConf.create({"reward": {"custom_reward_function": function}}))
    texts = [f"<think>\n</think>\n<answer>{answer}</answer>" for answer in (row["solution"], "1")]
    right, wrong = asyncio.run(rewards_of([*texts], item, tokenizer, score))
    assert (right["reward_score"], wrong["reward_score"]) == (1.0, 0.0)
    assert wrong["reward_extra_info"]["format"] == 1.0


def check_configuration(export: Path) -> None:
    overrides = re.findall(
        r"^  (?!\")([^\s]+=.*?) ?\\?$", (export / "run.sh").read_text(), re.MULTILINE
    )
    assert len(overrides) > 25
    with initialize_config_dir(
        str(Path(verl.__file__).parent / "trainer/config"), version_base=None
    ):
        config = compose(
            "ppo_trainer",
            overrides=[re.sub(r'"\$\{MODEL:-(.*)\}"', r"\1", text) for text in overrides],
        )
    assert config.reward.custom_reward_function.name == "compute_score"
    assert config.actor_rollout_ref.model.path == "Qwen/Qwen2.5-3B-Instruct"


if __name__ == "__main__":
    check_rows(Path(sys.argv[1]))
    check_configuration(Path(sys.argv[1]))
