"""Check that dvc.lock describes the present code, options and committed results; needs no cache and runs nothing."""

import json
import subprocess
import sys

#: States of outputs that are not in a clone without its cache.
ABSENT = ("deleted", "not in cache")


def differences() -> list[str]:
    """Return a line for each stage and file that is not as in dvc.lock, by ``dvc status``."""
    command = [sys.executable, "-m", "dvc", "status", "--json"]
    lines = []
    for stage, changes in json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    ).items():
        for change in changes:
            if isinstance(change, str):  # of the command
                lines.append(f"{stage}: {change}")
                continue
            ((kind, files),) = change.items()
            for file, state in files.items():
                # An output that another stage reads is checked there; as a directory it may be here in part.
                read = kind == "changed deps" and file.startswith("artifacts/")
                if state not in ABSENT and not read:
                    lines.append(f"{stage}: {file} is {state}")
    return lines


if __name__ == "__main__":
    if lines := differences():
        sys.exit(
            "\n".join(
                [*lines, "dvc.lock is not that of this code: run `dvc repro`, or `dvc commit -f`."]
            )
        )
