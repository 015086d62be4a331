"""Limits of templates: what would take long or fill memory is refused, and real templates are unchanged."""

import pytest

from countdown_rl.core.errors import InputError
from countdown_rl.models import chat_template
from countdown_rl.tasks import prompt
from tests.support import tiny_llama

TURNS = [{"role": "user", "content": "Numbers: 3 7 50"}]
_DOUBLED = "{% set x = 'ab' %}" + "{% set x = X %}" * 40
HOSTILE = [
    "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3,
    "{% for a in 'x' * 99999 %}{% for b in 'x' * 99999 %}.{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for a in range(90000) %}" + "y" * 100_000 + "{% endfor %}",
    "{{ 'x'.ljust(2000000000) }}{{ 'x'.rjust(2000000000) }}{{ '1'.zfill(2000000000) }}",
    "{% set x = 9 ** 9999 %}{% for i in range(9999) %}{% set x = x * x %}{% endfor %}{{ 10 ** 99999999 }}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{{ range(99999) | map('center', 99999) | list | length }}",
    "{% set m = range(99999) %}"
    + "{% set m = m | map('string') %}" * 99
    + "{{ m | list | sort | length }}",
    "{% for i in range(99999) %}{% set y = ('x' * 999999)[::-1] %}{% endfor %}",
    "{% set y = 'x' * 999999 %}{% for i in range(99999) %}{% if y + 'a' == y + 'b' %}{% endif %}{% endfor %}",
    "{{ (range(99999) | batch(1) | list) | sum(start=[]) | length }}",
    "{% for i in range(99999) %}{{ range(99999) | sort | sum }}{% endfor %}",
    "{% set n = namespace(x=[], y=[]) %}{% for i in range(30) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}"
    "{% endfor %}{{ [n.x].index(n.y) }}{{ [n.x].count(n.y) }}{{ [n.x].remove(n.y) }}",
]
#: Expressions, each of a template of its own.
EXPRESSIONS = [
    "'x' * 2000000000",
    "2000000000 * ['x']",
    "('x' * 300000000) | tojson",
    "'x'.center(2000000000)",
]
EXPRESSIONS += ["'x' | center(2000000000)", "'%1000000000d' % 1", "'%*d' % (1000000000, 1)"]
EXPRESSIONS += [
    "'%.1000000000f' | format(1)",
    "'{:1000000000}'.format(1)",
    "'{:{}}'.format(1, 1000000000)",
]
EXPRESSIONS += ["'{a:1000000000}'.format_map({'a': 1})", "('{0}' * 9999).format('x' * 99999)"]
EXPRESSIONS += ["('\\t' * 9999).expandtabs(99999)", "'a\\n' | indent(1000000000)"]
EXPRESSIONS += ["(['a'] * 99999) | join('x' * 99999)", "('x' * 99999).join(['a'] * 99999)"]
EXPRESSIONS += [
    "('a' * 9999) | wordwrap(1, wrapstring='x' * 9999)",
    "[1] | batch(1000000000, 0) | list",
]
EXPRESSIONS += [
    "[1] | slice(1000000000) | list",
    "[1] | tojson(indent=1000000000)",
    "9 ** 99999999",
]
HOSTILE += [f"{{{{ {expression} }}}}" for expression in EXPRESSIONS]
HOSTILE += [_DOUBLED.replace("X", text) for text in ("x ~ x", "x + x", "x | replace('a', 'aaaa')")]
HOSTILE += [_DOUBLED.replace("X", "x.replace('a', 'aa').replace('b', 'bb')")]
HOSTILE += [_DOUBLED.replace("X", "[x, x]") + shown for shown in ("{{ x }}", "{{ x | tojson }}")]
HOSTILE += [_DOUBLED.replace("X", "{'a': x, 'b': x}") + "{{ x | string }}"]


DOORS = {
    "model": lambda template: chat_template.apply(tiny_llama.tokenizer(template), TURNS),
    "row": lambda template: prompt.from_template(template, {"nums": [1]}),
}


@pytest.mark.parametrize("template", HOSTILE)
@pytest.mark.parametrize("door", DOORS)
def test_a_template_that_would_not_end_or_fill_memory_is_refused(template, door):
    with pytest.raises(InputError, match=r"template .*(fails|cannot be rendered): "):
        DOORS[door](template)


HARMLESS = """{%- set ns = namespace(found=false, n=0) -%}
{% macro turn(m, last=false) %}
{{ '<|' ~ m.role ~ '|>' }}{{ m['content'] | trim }}{% if not last %}{{ '\\n' }}{% endif %}
{% endmacro %}
{% for m in messages if m.role != 'tool' %}
{{ turn(m, loop.last) }}{{ loop.index0 }}/{{ loop.length }}{% set ns.n = ns.n + 1 %}
{% endfor %}
{{ messages[::-1][0].content.split(':')[-1] | upper }} {{ messages[1:] | length }} {{ '%05.2f|%s' % (3.14159, 'a') }}
{{ '{:>6,}'.format(1234567) }} {{ messages | tojson(indent=2) }} {{ messages | map(attribute='role') | join(', ') }}
{{ eos_token }}{{ 2 ** 10 }}{{ 'ab' * 3 }}{{ undefined_name }}{{ none }}{{ [1, 2] | sum }}{{ {'a': 1}.items() | list }}
{% if 'Numbers' in messages[0].content and messages is iterable %}{% generation %}yes{% endgeneration %}{% endif %}
{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""


def test_a_harmless_template_gives_the_text_of_transformers():
    tokenizer = tiny_llama.tokenizer(HARMLESS)
    turns = [
        {"role": "system", "content": " Be brief. "},
        *TURNS,
        {"role": "user", "content": "a" * 30_000},
    ]
    for prompted in (True, False):
        expected = tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=prompted
        )
        assert chat_template.apply(tokenizer, turns, add_generation_prompt=prompted) == expected
