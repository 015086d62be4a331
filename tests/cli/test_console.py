"""The printer, with a stderr that is not a terminal."""

import io
from types import SimpleNamespace

import pytest
from rich.table import Table

from countdown_rl.cli import console


@pytest.mark.parametrize("show", [console.note, console.warn, console.failure])
def test_a_sentence_stays_one_line_and_is_not_read_as_markup(show, capsys):
    path = "/".join(["a[red]long[/red]:smile:", "name"] * 20)
    show(f"{path}\x1b[2J\x9b1m\u202eb\ud800 does not exist.")
    printed = capsys.readouterr()
    assert rf"{path}\x1b[2J\x9b1m\u202eb\ud800 does not exist." in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")


def test_tables_and_completions_are_not_read_as_markup(capsys):
    table = Table("[b]head[/b]", title="[red]title[/red]")
    table.add_row("[/] :smile:")
    console.result({}, table)
    console.stream("[u]a\x1b[2J")
    printed = capsys.readouterr().out
    for part in ("[b]head[/b]", "[red]title[/red]", "[/] :smile:", r"[u]a\x1b[2J"):
        assert part in printed


def test_a_terminal_shows_no_markup(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(
        console, "people", console.Printer(file=out, force_terminal=True, markup=False)
    )
    with console.progress("rows [b]") as update:
        update(1, 2, "[red]reward[/red] 1.0")
    for part in ("rows [b]", "[red]reward[/red] 1.0"):
        assert part in out.getvalue()
    assert "[dim]rows" not in out.getvalue()


def test_progress_in_a_file_is_a_line_each_minute(monkeypatch, capsys):
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=0.0)
    monkeypatch.setattr(console, "time", clock)
    lines = []
    with console.progress("completions") as update:
        for second in range(200):
            clock.now = float(second)
            update(0 if second < 100 else second, 300, "retry 1 of 10" if second < 100 else "")
            lines += [(second, line) for line in capsys.readouterr().err.splitlines()]
    assert [second for second, _ in lines] == [8, 68, 128, 188]
    assert lines[0][1] == "completions: 0 of 300, retry 1 of 10"
