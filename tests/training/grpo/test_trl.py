"""``--trl key=value``: conversion to the type of the field, and errors."""

import os
from types import SimpleNamespace

import pytest
import torch

from countdown_rl.core import processes
from countdown_rl.core.errors import UsageError
from countdown_rl.training.grpo.trl import grpo_config, parse
from countdown_rl.training.options import TrainOptions

OWN = {"learning_rate": 1e-4, "max_steps": 5, "num_generations": 4}


@pytest.mark.parametrize(
    ("given", "value"),
    [
        *(
            ("delta=2", 2.0),
            ("entropy_coef=0.01", 0.01),
            ("top_k=20", 20),
            ("use_bias_correction_kl=false", False),
        ),
        *(("disable_dropout=True", True), ("optim=adafactor", "adafactor"), ("run_name=7", "7")),
    ],
)
def test_values_are_converted_to_the_type_of_their_field(given, value):
    key = given.partition("=")[0]
    (read,) = parse([given], OWN).items()
    assert read == (key, value)
    assert type(read[1]) is type(value)


@pytest.mark.parametrize(
    ("item", "cause"),
    [
        *(
            (key, "another option")
            for key in ("learning_rate=1", "push_to_hub=true", "eval_strategy=steps")
        ),
        *(
            ("learnig_rate=1", "no such field"),
            ("use_transformers_continuous_batching=true", "another option"),
        ),
        *(
            ("delta=much", "invalid float value"),
            ("top_k=1.5", "invalid int value"),
            ("optim=sgdd", "invalid choice"),
        ),
        ("disable_dropout=perhaps", "Truthy value expected"),
    ],
)
def test_an_invalid_field_is_refused_by_name(item, cause):
    with pytest.raises(UsageError, match=f"^--trl {item.partition('=')[0]}.*: .*{cause}"):
        parse([item], OWN)


def config(directory, *trl, device="cpu"):
    loaded = SimpleNamespace(device=device, model=SimpleNamespace(dtype=torch.float32))
    return grpo_config(TrainOptions(learning_rate=1e-4, trl=trl), loaded, [1.0, 1.0], directory)


def test_an_error_of_trl_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"--trl generation_kwargs=\{: TRL refuses this"):
        config(tmp_path, "generation_kwargs={")
    assert config(tmp_path, 'generation_kwargs={"typical_p": 0.9}').generation_kwargs == {
        "typical_p": 0.9
    }


def test_one_process_takes_one_of_the_visible_gpus(tmp_path, monkeypatch):
    for visible, used in ((None, "0"), ("3,1", "3"), ("GPU-a,GPU-b", "GPU-a"), ("", "")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        processes.run_alone()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == used
    monkeypatch.setattr(
        "transformers.training_args.torch.cuda.device_count", lambda: 2
    )  # torch knew them before
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES=0"):
        config(tmp_path, device="cuda")
