"""Progress of a training run."""

from countdown_rl.cli import console, live
from countdown_rl.runlog.log import StepRow


def row(step, reward=0.5):
    return StepRow(step, reward, 0.4, 1.0, 81.0, 0.1, 0.25, 0.7, None, 0.3, 2e-4, 2.0, 1.0, 0.1, 0.9)


def test_a_sparkline_goes_from_the_lowest_to_the_highest():
    assert live.sparkline([0.0, 1.0]) == "▁█"
    assert live.sparkline([2.0, 2.0, 2.0]) == "▁▁▁"
    assert len(live.sparkline(list(map(float, range(1000))))) == 24
    assert live.sparkline([]) == ""


def test_durations_are_short():
    assert [live.duration(s) for s in (4.4, 200, 7500)] == ["4s", "3m 20s", "2h 05m"]


def test_without_a_terminal_a_short_run_prints_its_end_only(capsys):
    with live.progress(3) as update:
        for step in (1, 2, 3):
            update(row(step))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "step 3/3: reward 0.500, solved 40%, 81 tokens\n"


def test_the_block_shows_reward_share_length_and_time_left():
    with console.people.capture() as capture:
        console.people.print(live.block([], 10))
        console.people.print(live.block([row(step, reward=step / 10) for step in range(1, 5)], 10))
    text = capture.get()
    for part in ("0/10", "4/10", "12s left", "0.250", "40%", "81 tokens", "10% truncated", "25% of groups"):
        assert part in text
