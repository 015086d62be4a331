"""Templates that would run for hours or take all memory, and how little the limits cost."""

import os
import time

import pytest

from countdown_rl.errors import InputError
from countdown_rl.tasks import limited, prompt
from countdown_rl.tasks.limited import LimitError

CHAT = "transformers.utils.chat_template_utils:render_jinja_template"
LOOPS = "{% for a in s %}" * 9 + "{% endfor %}" * 9
#: What each template does, with ``s`` of 64 characters.
ENDLESS = {
    "nested loops": LOOPS,
    "compares equal lists": "{{ ([s * 10**6] * 10**7).count(s * 10**6) }}",
    "a power": "{{ 7 ** (10 ** 9) }}",
    "a macro that calls itself twice": "{% macro f(n) %}{{ f(n - 1) or f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
}
LARGE = {
    "doubled strings": "{% set ns = namespace(x=s) %}{% for a in s %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "a product": "{{ ('x' * 10**10) | length }}",
    "a centred text": "{{ 'x' | center(10**10) | length }}",
    "a format": "{{ '%9999999999d' % 1 }}",
    "a joined list": "{% set t = s * 10**6 %}{{ [t, t] | join(t * 9) | replace('x', t) | length }}",
    "a long output": "{% for a in s %}{{ s * 10**4 }}{% endfor %}",
}


def chat(template, **values):
    return limited.call(CHAT, [[{"role": "user", "content": "?"}]], chat_template=template, **values)[0][0]


@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_a_template_that_runs_on_is_stopped(template, monkeypatch):
    monkeypatch.setattr(limited, "SECONDS", 1)
    begun = time.monotonic()
    with pytest.raises(LimitError, match="takes more than 1 second"):
        chat(template, s="x" * 64)
    assert time.monotonic() - begun < 9
    assert chat("{{ s }}", s="x") == "x"


@pytest.mark.parametrize("template", LARGE.values(), ids=LARGE)
def test_a_template_that_takes_much_memory_is_stopped(template):
    with pytest.raises(LimitError, match="1 GB of memory"):
        chat(template, s="x" * 64)


@pytest.mark.parametrize(
    ("template", "word"),
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for a in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ ''.__class__.mro() }}", "unsafe"),
        ("{% if %}", "Expected"),
    ],
)
def test_what_a_template_raises_is_one_sentence(template, word):
    with pytest.raises(InputError, match=word) as error:
        chat(template)
    assert "\n" not in str(error.value)


def test_a_module_that_cannot_be_imported_is_named():
    with pytest.raises(InputError, match="No module named 'absent'"):
        limited.call("absent:render")


@pytest.mark.parametrize("template", ["{{ 'x' * 10**10 }}", "{% set x = ns * 10**10 %}"])
def test_a_prompt_of_the_users_own_has_the_same_limits(template):
    with pytest.raises(InputError, match="the template cannot be rendered: it takes more than"):
        prompt.messages(template, {"ns": "x"})


def test_two_thousand_prompts_take_a_second_or_two():
    chat("{{ s }}", s="x")
    begun = time.monotonic()
    assert {chat("{{ messages[0].role }}", number=number) for number in range(2_000)} == {"user"}
    assert time.monotonic() - begun < 5


def test_a_fork_has_a_child_of_its_own():
    first = limited._child(os.getpid())
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, chat("{{ s }}", s="from the fork").encode())
        os._exit(0)
    os.wait()
    assert os.read(read, 100) == b"from the fork"
    assert limited._child(os.getpid()) is first
    assert chat("{{ s }}", s="y") == "y"
