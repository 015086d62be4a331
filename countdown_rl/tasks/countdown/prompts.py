"""Puzzles in prompts: fixed texts of this package and published templates."""

import re
from functools import lru_cache

from countdown_rl.core.types import JsonObject
from countdown_rl.tasks.countdown.rules import DEFAULT_RULE, OPERATORS, RULES

_USING = "Using the numbers {nums}, create an equation that equals {target}. "
_FOUR = "You can use basic arithmetic operations (+, -, *, /) "
_TAGS = "Show your work in <think> </think> tags. And return the final "
_ONCE = "each number can only be used once"
#: The published user turns and the rule that they state: TinyZero and verl, Mini-R1, Jiayi-Pan,
#: nano-aha-moment.
_PUBLISHED = {
    f"{_USING}{_FOUR}and {_ONCE}. {_TAGS}answer in <answer> </answer> tags, "
    "for example <answer> (1 + 2) / 3 </answer>.": DEFAULT_RULE,
    f"{_USING}{_FOUR}one or multiple times but {_ONCE}. {_TAGS}equation in <answer> </answer> "
    "tags, for example <answer> (1 + 2) / 3 </answer>. Think step by step inside <think> tags.": DEFAULT_RULE,
    f"{_USING}{_FOUR}one or multiple times but {_ONCE}. {_TAGS}equation in <answer> </answer> "
    "tags, for example <answer> (1 + 2) / 3 </answer>.": DEFAULT_RULE,
    f"{_USING}{_FOUR}and {_ONCE}. {_TAGS}equation and answer in <answer> </answer> tags, "
    "for example <answer> (1 + 2) / 3 = 1 </answer>.": DEFAULT_RULE,
    f"{_USING}{_FOUR}and {_ONCE}. {_TAGS}equation and answer in <answer> </answer> tags, "
    "for example <answer>(1 + 2) / (3 * 5)</answer>.": DEFAULT_RULE,
    # reasoning-gym
    "Using the numbers {nums}, create an expression that equals {target}.\n"
    "You can only use each number once.": "at-most-once",
    "Find a way to make {target} using some or all of these numbers: {nums}.\n"
    "Each number can only be used once.": "at-most-once",
    "Calculate {target} using the numbers {nums}.\n"
    "Each number may be used at most once.": "at-most-once",
    "Calculate {target} using all of these numbers: {nums}.\n"
    "Each number may be used at most once.": DEFAULT_RULE,
}
#: What reasoning-gym adds to a question.
_FORMAT = (
    "\n\nFinal answer format instructions:\n"
    "1. Provide your solution as a arithmetic expression (no '=' sign).\n"
    "2. Do not include the target number in the expression.\n"
    "3. Use '*' for multiplication.\n4. Use '/' for division.\n"
    "5. Do not include any other text or formatting.\n"
)
_NUMS, _TARGET = r"\[?(?P<nums>[0-9]+(?:(?:, |,| )[0-9]+)*)\]?", r"(?P<target>-?[0-9]+)"
_OWN = re.compile(
    rf"Numbers: (?P<nums>[0-9]+(?: [0-9]+)*)\nTarget: {_TARGET}\n"
    r"Reach the target with (?P<operators>[-+*/](?: [-+*/])*) and parentheses, "
    rf"(?P<words>{'|'.join(re.escape(rule.words) for rule in RULES.values())})\. "
    r"If there is no way, answer impossible\."
)


def _pattern(template: str) -> re.Pattern[str]:
    text = re.escape(template).replace(r"\{nums\}", _NUMS).replace(r"\{target\}", _TARGET)
    return re.compile(f"{text}(?:{re.escape(_FORMAT.rstrip())})?")


_WORDS = {rule.words: rule.name for rule in RULES.values()}
_TEMPLATES = [(_OWN, DEFAULT_RULE)]
_TEMPLATES += [(_pattern(template), rule) for template, rule in _PUBLISHED.items()]


@lru_cache(maxsize=4_096)
def asked(text: str) -> JsonObject | None:
    """The fields of the puzzle that *text* asks; None if it is no text of this package and no
    published template.
    """
    for pattern, rule in _TEMPLATES:
        match = pattern.fullmatch(text.strip())
        if match:
            return _fields(match.groupdict(), rule)
    return None


def _fields(parts: dict[str, str], rule: str) -> JsonObject:
    """The fields of a row of the *parts* of a prompt, and of *rule* if they state none."""
    nums = [int(number) for number in re.findall("[0-9]+", parts["nums"])]
    fields: JsonObject = {"nums": nums, "target": int(parts["target"])}
    rule = _WORDS.get(parts.get("words", ""), rule)
    operators = parts.get("operators", OPERATORS).replace(" ", "")
    if rule != DEFAULT_RULE:
        fields["rule"] = rule
    if operators != OPERATORS:
        fields["operators"] = operators
    return fields
