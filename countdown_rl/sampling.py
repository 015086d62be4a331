# mypy: disallow-untyped-defs=False
"""Drawing puzzles and taking stock of those that exist: loops that Numba compiles, like the kernel's."""

from countdown_rl.kernel import mix, search, split_part, write


def draw(
    seed, stream, indices, attempts, limit, sizes, values, tiles, split, parts, low, high,
    wants, least, most, every, whole, add, take, times, over,
    out_nums, out_target, out_count, out_plain, out_text, out_length,
    tops, bottoms, kinds, flags, lefts, rights, joins, costs, firsts, seconds,
    starts, ends, seen, counts, plain, ranks, best, found, scratch,
):  # fmt: skip
    """Draw the puzzles of some rows: row i by its own random numbers, tried until one is what it should be.

    seed, stream: together with a row's index and the attempt they decide all that is drawn.
    attempts: where each row begins to try; holds where it succeeded afterwards, -1 where *limit* was reached.
    sizes: numbers in each row. values: what is drawn from, with replacement, or as *tiles* without.
    split: the first and last of *parts* that the numbers must fall into. wants: per row 0 any solvable
    puzzle, 1 one that + and - solve, 2 one that they do not, 3 an impossible one. least, most: how many
    solutions. The rest as in :func:`search`.
    """
    pool = values.copy()
    dirty = False
    for row in range(len(indices)):
        size = sizes[row]
        nums = out_nums[row, :size]
        ordered = scratch[:size]
        base = mix(mix(mix(seed ^ 0x5851F42D4C957F2D) ^ stream) ^ indices[row])
        attempt = attempts[row]
        attempts[row] = -1
        until = attempt + limit
        while attempt < until:
            state = mix(base ^ mix(attempt + 0x2545F4914F6CDD1D))
            repeats = False
            for i in range(size):
                state = mix(state + 0x1E3779B97F4A7C15)
                if tiles:
                    k = i + state % (len(pool) - i)
                    pool[i], pool[k] = pool[k], pool[i]
                    number = pool[i]
                else:
                    number = values[state % len(values)]
                nums[i] = number
                k = i - 1
                while k >= 0 and ordered[k] > number:
                    ordered[k + 1] = ordered[k]
                    k -= 1
                if k >= 0 and ordered[k] == number:
                    repeats = True
                ordered[k + 1] = number
            if tiles:
                pool[:] = values  # the next draw must not depend on this one
            state = mix(state + 0x1E3779B97F4A7C15)
            target = low + state % (high - low + 1)
            attempt += 1
            part = split_part(ordered, parts)
            if part < split[0] or part > split[1]:
                continue
            counts[0], plain[0], ranks[0] = 0, 0, -1
            if repeats and dirty:
                seen[:] = 0
                dirty = False
            matched = search(
                nums, target, target, every, whole, add, take, times, over, repeats,
                tops, bottoms, kinds, flags, lefts, rights, joins, costs, firsts, seconds,
                starts, ends, seen, counts, plain, ranks, best, found,
            )  # fmt: skip
            dirty = dirty or (repeats and matched > 0)
            if wants[row] == 3:
                if counts[0] > 0:
                    continue
                out_length[row] = 0
            else:
                if counts[0] < least[row] or counts[0] > most[row]:
                    continue
                if (wants[row] == 1 and plain[0] == 0) or (wants[row] == 2 and plain[0] == 1):
                    continue
                out_length[row] = write(
                    best[0], best[1], best[2], best[3], nums, tops, bottoms, kinds, lefts, rights, joins,
                    out_text[row], 0, scratch,
                )  # fmt: skip
            out_target[row], out_count[row], out_plain[row] = target, counts[0], plain[0]
            attempts[row] = attempt
            break
