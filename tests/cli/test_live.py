"""What a person sees while a model learns."""

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


def test_without_a_terminal_only_the_end_is_said_of_a_short_run(capsys):
    with live.watching(3) as watch:
        for step in (1, 2, 3):
            watch(row(step))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "step 3/3: reward 0.500, solved 40%, 81 tokens" in said.err


def test_the_block_shows_reward_share_length_and_time_left():
    view = live._View(10)
    for step in range(1, 5):
        view.take(row(step, reward=step / 10))
    with console.people.capture() as capture:
        console.people.print(view.block())
    text = capture.get()
    for part in ("4/10", "12s left", "0.250", "40%", "81 tokens", "10% cut short", "25% of groups"):
        assert part in text
