"""Options about prompts, rules and the records of a file."""

from pathlib import Path
from typing import Annotated

from countdown_rl.core.errors import UsageError, first_line
from countdown_rl.core.options import option

PROMPT = "Prompt"
RECORDS = "Records of other tools"
#: Help of the flag of a rule of Countdown.
RULE = "Rule: exactly-once, at-most-once or television."

Fields = Annotated[
    tuple[str, ...],
    option(
        "Where a record has nums, target, completion, id, prompt, rule, operators or style, in JMESPath; repeatable.",
        RECORDS,
        metavar="NAME=EXPR",
    ),
]
RecordsPath = Annotated[
    str | None, option("Where a JSON document has its records.", RECORDS, metavar="EXPR")
]


def _read_prompt(file: str) -> str:
    try:
        return Path(file).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{file} cannot be read ({first_line(error)}); give another.", option="prompt"
        ) from error


#: The text of a prompt template; its flag takes the file.
Prompt = Annotated[
    str | None,
    option(
        "Jinja file of a prompt, see docs/models.md.",
        PROMPT,
        name="--prompt",
        metavar="FILE",
        parser=_read_prompt,
    ),
]
