"""Options that say what the records of a file are."""

from typing import Annotated

from countdown_rl.core.options import option

RECORDS = "Records of other tools"

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
