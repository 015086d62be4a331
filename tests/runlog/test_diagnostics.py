"""Warnings about a run that goes wrong, and none about a healthy one."""

from countdown_rl.runlog import diagnostics
from countdown_rl.runlog.log import StepRow


def row(step, **changes):
    usual = {
        "reward": 0.5,
        "correct": 0.4,
        "format": 1.0,
        "mean_length": 80.0,
        "truncated": 0.1,
        "frac_reward_zero_std": 0.3,
        "entropy": 0.4,
        "kl": None,
        "grad_norm": 0.2,
        "learning_rate": 1e-4,
        "seconds": 1.0,
        "seconds_generation": 0.5,
        "seconds_reward": 0.0,
        "seconds_loss": 0.4,
        "kinds": {"correct_add_sub": 0.5, "correct_mul_div": 0.3},
    }
    return StepRow(step, **(usual | changes))


def warnings(rows, refusals=None, examples=None):
    return diagnostics.warnings(rows, refusals or {}, examples or {})


def run(steps, **changes):
    return [row(step, **changes) for step in range(1, steps + 1)]


def test_a_healthy_run_has_no_warnings():
    assert warnings(run(300)) == {}


def test_warnings_need_enough_steps():
    assert warnings(run(9, entropy=0.0, correct=0.0, truncated=1.0)) == {}
    assert set(warnings(run(10, entropy=0.0, correct=0.0, truncated=1.0))) == {"entropy", "zero", "length"}


def test_falling_accuracy_on_multiplication_is_a_warning_though_the_mean_rises():
    alive = run(40)
    dead = [row(step, correct=0.8, kinds={"correct_add_sub": 0.9, "correct_mul_div": 0.02}) for step in range(41, 61)]
    assert "multiplication is falling" in warnings(alive + dead)["multiplication"]
    assert "2% are correct" in warnings(alive + dead)["multiplication"]
    assert warnings(alive + dead[:5]) == {}
    never = run(120, kinds={"correct_add_sub": 0.7, "correct_mul_div": 0.0})
    assert "not being learned" in warnings(never)["multiplication"]
    assert warnings(run(120, kinds={"correct_add_sub": 0.1, "correct_mul_div": 0.0})) == {}


def test_steps_without_multiplication_do_not_count():
    sparse = [row(step, kinds={"correct_mul_div": 0.4 if step < 20 else None}) for step in range(1, 200)]
    assert warnings(sparse) == {}


def test_the_warning_about_zero_rewards_names_the_reason():
    text = warnings(run(10, correct=0.0), {"no-answer": 5, "wrong-value": 15}, {"wrong-value": "1+1"})["zero"]
    assert "(75%) the reason is wrong-value, as in '1+1'" in text
    assert warnings([*run(9, correct=0.0), row(10, correct=0.01)]) == {}


def test_steps_without_entropy_do_not_count():
    assert warnings(run(20, entropy=None)) == {}
    assert "entropy" in warnings(run(20, entropy=None) + run(1, entropy=0.001))
