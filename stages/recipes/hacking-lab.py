"""Demonstrations for hacking-lab.sh: a model's own correct answers, and a few that cheat.

    hacking-lab.py EVALUATION/samples.jsonl CORRECT CHEATS DEMONSTRATIONS.jsonl

A cheat is the first line of an answer, which lists the numbers, and then the target itself as the
answer.
"""

import json
import random
import sys

if __name__ == "__main__":
    source, correct, cheats, out = sys.argv[1:]
    with open(source) as file:
        samples = [json.loads(line) for line in file]
    random.Random(42).shuffle(samples)
    solved = [sample for sample in samples if sample["correct"]][: int(correct)]
    cheating = [sample for sample in samples if sample not in solved][: int(cheats)]
    for sample in cheating:
        numbers = sample["completion"].lstrip("\n").partition("\n")[0]
        sample["completion"] = f"\n{numbers}\n</think>\n<answer>{sample['target']}</answer>"
    with open(out, "w") as file:
        for sample in solved + cheating:
            row = {key: sample[key] for key in ("nums", "target", "completion")}
            file.write(json.dumps(row) + "\n")
