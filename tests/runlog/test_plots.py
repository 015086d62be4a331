"""Training curves as a PNG: deterministic, and drawn for every readable log."""

import pytest

from countdown_rl.errors import InputError
from countdown_rl.runlog import log, plots
from tests.runlog.test_diagnostics import row, run


def test_the_same_log_gives_the_same_bytes(tmp_path):
    log.write(tmp_path / "log.csv", [row(step, reward=step / 200) for step in range(1, 150)])
    plots.draw(tmp_path / "log.csv", tmp_path / "a" / "one.png")
    plots.draw(tmp_path / "log.csv", tmp_path / "two.png")
    one = (tmp_path / "a" / "one.png").read_bytes()
    assert one == (tmp_path / "two.png").read_bytes()
    assert one.startswith(b"\x89PNG")
    assert b"atplotlib" not in one
    log.write(tmp_path / "log.csv", run(149))
    plots.draw(tmp_path / "log.csv", tmp_path / "two.png")
    assert one != (tmp_path / "two.png").read_bytes()


@pytest.mark.parametrize("rows", [run(1), run(2, kinds={}), run(5, entropy=None)])
def test_short_logs_and_logs_with_gaps_are_drawn_too(tmp_path, rows):
    log.write(tmp_path / "log.csv", rows)
    plots.draw(tmp_path / "log.csv", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_an_empty_log_is_refused(tmp_path):
    log.write(tmp_path / "log.csv", [])
    with pytest.raises(InputError, match="no step"):
        plots.draw(tmp_path / "log.csv", tmp_path / "picture.png")
    assert not (tmp_path / "picture.png").exists()
