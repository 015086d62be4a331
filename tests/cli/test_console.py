"""What a person sees where there is no terminal."""

import pytest

from countdown_rl.cli import console


@pytest.mark.parametrize("say", [console.note, console.warn, console.failure])
def test_a_sentence_stays_one_line_and_is_not_read_as_markup(say, capsys):
    path = "/".join(["a[rather]long", "name"] * 20)
    say(f"{path} does not exist.")
    said = capsys.readouterr()
    assert f"{path} does not exist.\n" in said.err
    assert said.err.count("\n") == 1
    assert not said.out


def test_the_rate_counts_what_this_run_has_solved(monkeypatch, capsys):
    now = iter(range(100, 200))
    monkeypatch.setattr(console.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(console, "QUIET", 0.0)
    with console.solving() as advance:
        advance(0, 200, 0)
    with console.solving() as advance:
        advance(100, 200, 25)  # an earlier run's
        advance(150, 200, 75)
    fresh, begun, then = capsys.readouterr().err.splitlines()
    assert fresh.startswith("solving: 0 of 200")
    assert begun == "solving: 100 of 200, 25.0% solved"
    assert then.startswith("solving: 150 of 200, 50.0% solved, ")
    assert int(then.split()[-1].removesuffix("/s")) <= 50
