"""Read a puzzle from a prompt in any words, whole or not at all.

Every digit of the prompt has to be explained: as one list of numbers, its target, the count of the numbers, an example
or a date. A sentence with the list or the target has known words only, as has every sentence about the rules. A prompt
of this package states its rule and its operators in fixed words. Any other may only say that all four operators are
allowed and that each number is used once; other words about them are refused.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from countdown_rl.core.errors import InputError
from countdown_rl.tasks.countdown.rules import DEFAULT_RULE, OPERATORS, RULES

_OWN = re.compile(
    r"Numbers: ([0-9]+(?: [0-9]+)*)\s+Target: (-?[0-9]+)\s+Reach the target with ([-+*/](?: [-+*/])*) and parentheses, "
    rf"({'|'.join(re.escape(rule.words) for rule in RULES.values())})\. If there is no way, answer impossible\."
)

_SPACES = re.compile("[\u00a0\u2000-\u200a\u202f]")
_COMMAS = re.compile("[，、،]")
#: Marks around a number or a list: bold, code, formulas, quotes.
_MARKED = re.compile(r"(?<![\w*)])(\*\*|[*_`$\"'])(\[?[-−]?[0-9][0-9, ]*\]?)\1(?![\w*(])")
#: Text without a puzzle: examples of expressions, tags, dates of chat templates, numbers of instructions.
_BESIDE = re.compile(
    r"<(answer|think|thinking)>[^<]{0,80}</\1>"
    r"|(?:example|e\.g\.):?,?\s*(?:<\w+>)?(?=[^\n]{0,40}[-+*/])[-+*/()=0-9 ]*[0-9)](?![\w])"
    r"|</?\w+>|<\|[^|<>]{0,40}\|>|(?:Cutting Knowledge|Today) Date: [\w ]+"
    r"|(?m:^ *[0-9]{1,2}[.)] (?=[A-Za-z]))"
)
#: Two numbers or more with one kind of separator, but for an "and" before the last.
_LIST = re.compile(
    r"(?=[0-9]+[^0-9]+[0-9])[0-9]+(?:(?: *,\s*[0-9]+)+|(?: *;\s*[0-9]+)+|(?: +[0-9]+)+)?"
    r"(?: *[,;]? *(?:and|&) +[0-9]+)?"
)
_COUNTED = re.compile(r"\b([0-9]) (?=(?:given |provided )?numbers\b)")
_TARGET = re.compile(
    r"(?i)\b(?:target|equals?|reach|make|get|calculate|obtain|evaluates?)\b"
    r"(?:[\s:=]|\b(?:number|value|is|to|of|the|exactly|target)\b)*(?<![^\s:=])([-−]?(?:0|[1-9][0-9]*))(?! ?!|\w)"
)
#: Marks that make a digit a key, or are not seen.
_DIGIT_MARKS = re.compile("[\ufe0e\ufe0f\u20e3\u200b-\u200d\u2060]")
_ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_UNITS = [*_ONES.split(), "seventeen", "eighteen", "nineteen"]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "hundred"]
_NAMED = dict(zip(["", *_UNITS, *_TENS], [0, *range(20), *range(20, 101, 10)], strict=True))
#: Tens and ones in words, one of them or both.
_NAMES = re.compile(
    rf"(?i)\b(?:({'|'.join(_TENS)})(?:[ -]({'|'.join(_UNITS[1:10])})\b)?|({'|'.join(_UNITS)}))\b"
)
#: Numbers in words, except for counts of operations and the like, which are no numbers of a puzzle.
_WORD = re.compile(
    rf"(?i)\b(?:{'|'.join(_UNITS[2:])}|half|double|dozen)\b"
    r"(?! (?:\w+ ){0,2}(?:numbers|operat\w+|tags|blocks|parts|steps)\b)"
    rf"|\b(?:{'|'.join(_TENS)}|thousand|million)\b"
)

#: Words that say what the default does: each number once, all four operators.
_DEFAULT = re.compile(
    r"\b(?:using|use|uses|with)? ?(?:all(?: of)?|each of|every one of|only)? ?(?:the|these|those)"
    r"(?: given| provided| following)? numbers?(?: in this list)?(?: (?:exactly|only) once(?: each)?)?"
    r"|\b(?:you )?(?:must|should|have to|need to)? ?us(?:e|ing) (?:all|each|every)(?: of)?(?: the| these)?"
    r"(?: given| provided)? numbers?(?: in this list)?(?: (?:exactly |only |just )?once(?: and only once)?)?"
    r"|\b(?:you (?:can|may|must) only use )?(?:each|every)(?: of the| given| provided)?(?: numbers?| one)?"
    r" ?(?:(?:can|may|must|should|has to|is to|is)(?: only)? be )?(?:used )?(?:exactly |only |just )?once\b"
    r"(?: and only once\b)?"
    r"|\b(?:(?:all|any|some)(?: of)? )?(?:the )?(?:four |basic |standard |arithmetic |mathematical )+operat(?:ions|ors)"
    r"|\bone or (?:multiple|more) times\b(?: but\b)?|\bin any order\b|^\W*(?:follow |the |these )*rules:?$"
    r"|\buse '[*/]' for (?:multiplication|division)|\bonce\b(?= each\b)"
    r"|\bdo not include the target number in the expression"
    r"|\b(?:if|when)\b[^.]{0,80}\bimpossible\b|\bimpossible\b[^.]{0,40}\bif\b[^.]{0,60}",
    re.IGNORECASE,
)
_FOUR_WORDS = re.compile(
    r"(?i)\b(?:add\w*|subtract\w*|multipl\w*|divi\w*|minus|plus|times)(?:[ ,/]|\b(?:and|or)\b)*"
    r"(?:(?:add\w*|subtract\w*|multipl\w*|divi\w*|minus|plus|times)(?:[ ,/]|\b(?:and|or)\b)*){2,}divi\w*"
)
_SIGNS = re.compile(r"(?<![\w<])[-+*/×÷−](?:(?:[\s,'\"`()]|\band\b|\bor\b)*[-+*/×÷−])*(?![\w>])")
_PLAIN = str.maketrans("×÷−", "*/-")
#: Words about operators, words about the rules, and such as may change what a sentence says of either.
_OPERATION = re.compile(
    r"(?i)\b(?:powers?|exponent\w*|factorials?|modulo|roots?|operat\w+|add(?:ing|ition)?|subtract\w*"
    r"|multipl(?:y|ying|ication)\w*|divi(?:d\w+|sion)|sums?|plus|minus)\b"
)
_TOPIC = re.compile(
    r"(?i)\b(?:numbers?|digits?|values?|tiles?|targets?|results?|them|Ns?|rules?|once|twice|thrice|times?|re-?us\w*"
    r"|repe(?:at|tit)\w*|subset\w*|omit\w*|skip\w*|unused|left|leave|integers?|whole|natural|positive|negative\w*"
    r"|below zero|fractions?|decimals?|round\w*|intermediate|concatenat\w*|as close|clos(?:er|est)|near\w*"
    r"|approximate\w*|parenthes[ei]s|brackets?|order)\b|[^\W\d_A-Za-z]"
)
_ABOUT = re.compile(rf"{_TOPIC.pattern}|\bus(?:e|ed|es|ing)\b")
_CHANGING = re.compile(
    r"(?i)all|any|some|each|every\w*|few\w*|only|not?|cannot|without|never|optional\w*|free\w*|at|least|most|more|less"
    r"|than|two|three|both|either|n|t|don"
).fullmatch
#: Words of a sentence about a puzzle that change nothing.
_FRAME = re.compile(
    r"(?i)a|allowed|alone|also|an|and|answer|are|arithmetic|as|assistant|available|be|by|calculate|can|cards|careful|"
    r"combination|combine|compute|construct|countdown|create|do|equal|equals|equation|evaluate|evaluates|exact|"
    r"exactly|expression|final|find|following|for|form|formula|from|game|get|give|given|goal|have|help|how|human|"
    r"i|if|in|input|inside|instruction|is|it|its|let|list|make|math|mathematical|me|must|my|n|need|ns|number|"
    r"numbers|numeric|obtain|of|out|output|parentheses|player|please|problem|produce|puzzle|puzzles|q|question|"
    r"reach|reaches|reaching|result|results|s|should|show|solution|solve|solver|such|target|targets|task|that|"
    r"the|them|these|they|this|those|to|try|us|use|used|user|uses|using|valid|value|want|way|we|what|where|which|"
    r"whose|will|with|work|write|you|your"
).fullmatch
_MARKS = frozenset(",:;?()[]{}\"'`“”’=*_#-")


def numbers_in(text: str) -> list[int]:
    """All whole numbers in *text*, also parts of others and those in words up to a hundred."""
    digits = _DIGIT_MARKS.sub("", unicodedata.normalize("NFKC", text))
    words = [sum(_NAMED[part.lower()] for part in parts) for parts in _NAMES.findall(digits)]
    return [*(int(number[:30]) for number in re.findall(r"\d+", digits)), *words]


@lru_cache(maxsize=1_024)
def puzzle_in(text: str, stated: frozenset[str] = frozenset()) -> dict[str, Any] | None:
    """The fields of the only puzzle that the prompt *text* certainly asks; None if it is not certain.

    A prompt of this package has ``rule`` and ``operators`` too, None if they are the default. Raises InputError if
    the prompt says something about rule or operators that is neither the default nor of this package, and that is not
    *stated* otherwise.
    """
    if own := set(_OWN.findall(text)):
        nums, target, operators, use = own.pop()
        rest = _BESIDE.sub(" ", _OWN.sub(" ", text))
        if own or _LIST.search(rest):
            return None
        _check_rules(rest, stated)
        rule = next(rule.name for rule in RULES.values() if rule.words == use)
        terms = {"rule": rule, "operators": operators.replace(" ", "")}
        terms = {
            name: None if value in (DEFAULT_RULE, OPERATORS) else value
            for name, value in terms.items()
        }
        return {"nums": numbers_in(nums), "target": int(target), **terms}
    text = _BESIDE.sub(" ", _MARKED.sub(r"\2", _COMMAS.sub(",", _SPACES.sub(" ", text))))
    lists = [match for match in _LIST.finditer(text) if _is_list(match, text)]
    targets = list(_TARGET.finditer(text))
    nums = {tuple(numbers_in(match[0])) for match in lists}
    reached = {int(match[1].replace("−", "-")) for match in targets}
    if len({tuple(sorted(each)) for each in nums}) != 1 or len(reached) != 1:
        return None
    spans = [(*match.span(), "Ns") for match in lists] + [
        (*match.span(1), "N") for match in targets
    ]
    for start, end, name in sorted(spans, reverse=True):
        text = f"{text[:start]}{name}{text[end:]}"
    text = _COUNTED.sub(lambda match: "the " if int(match[1]) == len(min(nums)) else match[0], text)
    if any(map(str.isnumeric, text)) or _WORD.search(text):
        return None
    for sentence in _sentences(text):
        if re.search(r"\bNs?\b", sentence):  # apart from the words about the rules, all are known
            words = _OPERATION.sub(
                " ", _TOPIC.sub(" ", _SIGNS.sub(" ", _DEFAULT.sub(" ", sentence)))
            )
            if not all(map(_CHANGING, _strange(words))):
                return None
    _check_rules(text, stated)
    return {"nums": list(min(nums)), "target": reached.pop()}


def _sentences(text: str) -> list[str]:
    return [" ".join(sentence.split()) for sentence in re.split(r"[.;!?](?:\s|$)|\n", text)]


def _strange(words: str) -> set[str]:
    return {
        word for word in re.findall(r"[^\W_]+|\S", words) if word not in _MARKS and not _FRAME(word)
    }


def _check_rules(text: str, stated: frozenset[str]) -> None:
    """Raise InputError if a sentence of *text* may change the rule or the operators, unless these are *stated*."""
    for sentence in _sentences(text):
        words = _FOUR_WORDS.sub(" ", _DEFAULT.sub(" ", sentence))
        runs = [
            set(re.findall("[-+*/]", run[0].translate(_PLAIN))) for run in _SIGNS.finditer(words)
        ]
        if set(OPERATORS) in runs:
            words = re.sub("operat(?:ors|ions)", "", words)
        operators = _OPERATION.search(words) or any(
            run not in ({"-"}, set(OPERATORS)) for run in runs
        )
        about = (_TOPIC if operators else _ABOUT).search(sentence)
        rule = about and _strange(_OPERATION.sub(" ", _SIGNS.sub(" ", words)))
        if (operators and "operators" not in stated) or (rule and "rule" not in stated):
            remedy = "give --data, or --rule and --operators"
            raise InputError(
                f'its prompt says "{sentence[:80]}", which may change the rules; {remedy}'
            )


def _is_list(match: re.Match[str], text: str) -> bool:
    """True if *match* is a whole list of numbers, and neither one number with thousands nor a part of an expression."""
    before, after = text[: match.start()], text[match.end() :]
    thousands = before[-1:] != "[" and re.fullmatch("[0-9]{1,3}(?:,[0-9]{3})+", match[0])
    framed = not before or before[-1] in " \t\n:([{"
    single = (
        match[0].isdecimal()
        or re.match(r"\w| ?!", after)
        or re.search(r"(?<![0-9])0[0-9]", match[0])
    )
    return framed and not (thousands or single or re.search(r"[-−+] ?$", before))


def has_any(rows: Iterable[tuple[int, ...]]) -> Callable[[str], bool]:
    """A function that tells whether a text has all numbers of one of *rows*, which are sorted."""
    by_first: dict[int, list[Counter[int]]] = {}
    for row in rows:
        by_first.setdefault(row[0], []).append(Counter(row))

    def has_one(text: str) -> bool:
        numbers = Counter(numbers_in(text))
        return any(row <= numbers for number in numbers for row in by_first.get(number, ()))

    return has_one
