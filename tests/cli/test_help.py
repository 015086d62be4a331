"""Help and completion: light, lazy, and whole at 80 columns."""

import os
import re

import pytest
from typer.testing import CliRunner

from countdown_rl.cli import main
from countdown_rl.cli.names import OTHER_NAMES
from tests.support.command import flags, python

HELP = {name: text for panel in main.COMMANDS.values() for name, text in panel.items()}


#: For each command line a child process, which starts with the imports of ``main`` alone.
LOADED = f"""
import os, sys
from countdown_rl.cli import main
for words in ("--help", *(name + " --help" for name in {list(HELP)})):
    sys.stdout.flush()
    if os.fork():
        os.wait()
        continue
    sys.argv[1:] = words.split()
    try:
        main.main()
    except SystemExit as stop:
        print("MODULES", stop.code or 0, words.split()[0], *sys.modules, flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def loaded():
    """The modules that the help of each command imports, and that of the list of commands, "--help"."""
    lines = [line.split()[1:] for line in python(LOADED).splitlines() if line.startswith("MODULES")]
    assert {status for status, *_ in lines} == {"0"}
    return {name: set(modules) for _, name, *modules in lines}


@pytest.mark.parametrize("name", ["--help", *HELP])
def test_the_help_of_a_command_imports_no_other_command(name, loaded):
    commands = {
        other for other in HELP if f"countdown_rl.cli.{other.replace('-', '_')}" in loaded[name]
    }
    assert commands == {name} - {"--help"}
    assert not loaded[name] & ({"torch", "numpy", "rich"} if name == "--help" else {"torch"})
    assert name != "--help" or len(loaded[name]) < 300  # a quarter of a second


@pytest.mark.parametrize("name", HELP)
def test_a_command_is_listed_by_the_first_line_of_its_help(name):
    assert main.command(name).help.splitlines()[0] == HELP[name]
    assert len(HELP[name]) < 80


@pytest.mark.parametrize("name", HELP)
def test_help_fits_the_terminal_and_cuts_no_flag_and_no_choice(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page = CliRunner().invoke(main.app, [name, "--help"]).output
    assert "…" not in page
    assert max(map(len, page.splitlines())) <= 80
    for param in main.command(name).params:
        for flag in (*param.opts, *param.secondary_opts):
            assert param.param_type_name == "argument" or re.search(rf"{flag}(?![\w-])", page), flag
        for choice in param.type_descriptor.choices or ():
            assert str(getattr(choice, "value", choice)) in page


@pytest.mark.parametrize("name", HELP)
def test_examples_are_commands_that_parse(name):
    examples = main.command(name).epilog.replace("\\\n", " ")
    lines = re.findall(r"^\s*countdown-rl (.*)", examples, re.MULTILINE)
    assert lines or "| countdown-rl" in examples
    for line in lines:
        command, *words = line.split()
        assert {word for word in words if word.startswith("--")} <= flags(command)


@pytest.mark.parametrize(
    ("words", "completed"),
    [("tr", "train"), ("train --max-st", "--max-steps"), ("quantize --format n", "nf4")],
)
def test_the_shell_completes_commands_and_flags(words, completed):
    environment = os.environ | {"_COUNTDOWN_RL_COMPLETE": "complete_bash"}
    environment |= {"COMP_WORDS": f"countdown-rl {words}", "COMP_CWORD": str(len(words.split()))}
    code = "from countdown_rl.cli.main import app; app([], prog_name='countdown-rl')"
    assert completed in python(code, environment).split()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("train --lr 1e-4", "use --learning-rate."),
        ("train --max-new-tokens=9", "use --max-completion-length."),
        ("eval --max-completion-length 9", "use --max-new-tokens."),
        ("eval --n 9", "use --limit."),
        ("merge --model x", "use --adapter."),
        ("train --eval-steps 9", "use --eval-every."),
        ("train --kl_coef 0", "use --beta."),
        ("train --fp16", "use --precision fp16."),
        ("train --gradient-accumulation-steps 4", "use --micro-batch."),
        ("train --wandb", "use --trl report_to=wandb."),
        ("sft --report-to none", "use --trl report_to=NAME"),
        ("sft --train-file x", "use --from."),
        ("train --train-file x", "use --data."),
        ("train --hub-model-id x", "countdown-rl publish --push"),
        ("sft --resume", "use the same command again; it resumes."),
        ("eval runs/a", "give --model runs/a"),
        ("merge runs/a", "give --adapter runs/a"),
        ("publish runs/a", "give --model runs/a"),
    ],
)
def test_a_flag_or_path_that_another_program_has_is_answered_with_the_option(words, name):
    done = CliRunner().invoke(main.app, words.split())
    assert (done.exit_code, name in done.output) == (2, True), done.output


def test_other_names_lead_to_flags_that_exist():
    suggestions = {text.split()[0] for texts in OTHER_NAMES.values() for text in texts}
    suggested = {word for word in suggestions if word.startswith("--")}
    assert suggested <= set().union(*map(flags, HELP))


@pytest.mark.parametrize("words", ["-h", "train -h"])
def test_h_is_help(words):
    assert CliRunner().invoke(main.app, words.split()).exit_code == 0
