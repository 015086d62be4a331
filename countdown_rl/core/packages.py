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


def pip_install(*names: str) -> str:
    """The command that installs the distributions *names*, in the versions that this package declares."""
    declared = _declared()
    wanted = [declared.get(name, name).partition(";")[0].strip() for name in names]
    return f"`pip install {' '.join(map(repr, wanted))}`"


def missing(module: str) -> str | None:
    """A sentence that says how to install *module*, whose import failed; None where no extra has it."""
    name = module.partition(".")[0].replace("_", "-")
    requirement = _declared().get(name, "")
    if "extra ==" not in requirement:
        return None
    if re.search(r"extra == .train.", requirement):
        return f"{module} is not installed: it is in the extra `train`; in a clone `pip install -e '.[train]'`."
    return f"{module} is not installed: {pip_install(name)}."


def _declared() -> dict[str, str]:
    """The requirements of this package, by name; none of a copy that is not installed."""
    lines = requires("countdown-rl") or [] if version() != "unknown" else []
    return {re.split(r"[^\w.-]", line)[0].replace("_", "-"): line for line in lines}
