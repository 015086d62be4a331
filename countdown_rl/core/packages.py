"""This package's version, and its extras: how to install those that are missing."""

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as installed_version


@cache
def version() -> str:
    """The version of this package; "unknown" of a copy that is not installed."""
    try:
        return installed_version("countdown-rl")
    except PackageNotFoundError:
        return "unknown"


def install(module: str) -> str:
    """How to install *module*, the end of a sentence; "" if no extra of this package has it, or a
    copy runs.
    """
    name = module.partition(".")[0].replace("_", "-")
    if version() == "unknown":
        return ""
    for requirement in requires("countdown-rl") or ():
        extra = re.match(rf"{name}[^\w-].*extra == .([\w-]+)", requirement.replace("_", "-"))
        if extra:
            return f"in a clone `pip install -e '.[{extra[1]}]'`"
    return ""
