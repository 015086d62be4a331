"""llama.cpp as an engine, by way of llama-cpp-python's ``Llama.generate`` (0.3)."""

from collections.abc import Sequence
from typing import Any

from countdown_rl import generation, models
from countdown_rl.errors import ModelError
from countdown_rl.generation import Completion, Decoding
from countdown_rl.references import ModelRef, files


class LlamaCpp:
    """A GGUF file in llama.cpp's own arithmetic, one prompt after another.

    What a prompt has in common with the one before it is read once: rows come sorted, those of one puzzle
    together, and llama-cpp-python keeps the cache of the prefix.
    """

    name = "llama-cpp"
    path = "gguf"
    device = "cpu"
    note = ""
    libraries: tuple[str, ...] = ("llama_cpp_python",)

    def __init__(self, ref: ModelRef, decoding: Decoding, *, threads: int = 0) -> None:
        from countdown_rl.decoding import Stop

        self._file = files(ref)
        self._decoding, self._threads = decoding, threads or None
        self._llama: Any = None
        self.tokenizer = models.load_tokenizer(ref)
        self.precision = self._file.stem.rpartition(".")[2].lower()  # the convention of GGUF names: model.Q4_1.gguf
        self._stop = Stop(self.tokenizer, None, generation.STOP)

    def prepare(self, length: int) -> int | None:
        import llama_cpp

        if self._llama is not None and self._llama.n_ctx() >= length:
            return self._room()
        try:
            self._llama = llama_cpp.Llama(
                model_path=str(self._file),
                n_ctx=length,
                n_threads=self._threads,
                n_threads_batch=self._threads,
                seed=self._decoding.seed % 2**32,
                verbose=False,
            )
        except (ValueError, RuntimeError) as error:  # how it says that a file or an architecture is not for it
            raise ModelError(f"llama.cpp cannot load {self._file.name}: {error}") from error
        return self._room()

    def rows(self, length: int) -> int:
        return 16  # one after another; so many are kept at once

    def complete(self, prompts: Sequence[Sequence[int]], number: int = 0) -> list[Completion]:
        seed = self._decoding.seed
        return [
            self._complete(prompt, generation.row_seed(seed, number, at) % 2**32) for at, prompt in enumerate(prompts)
        ]

    def close(self) -> None:
        self._llama.close()

    def _complete(self, prompt: Sequence[int], seed: int) -> Completion:
        decoding, written = self._decoding, list[int]()
        self._llama.set_seed(seed)
        tokens = self._llama.generate(
            list(prompt),
            temp=decoding.temperature,
            top_p=decoding.top_p,
            top_k=0,
            min_p=0.0,
            repeat_penalty=1.0,
        )
        for token in tokens:
            written.append(int(token))
            if len(written) == decoding.max_new_tokens or self._over(written):
                break
        tokens.close()
        text = self.tokenizer.decode(written, skip_special_tokens=True)
        return Completion(text, len(written), self._over(written))

    def _over(self, written: list[int]) -> bool:
        return self._stop.may(written[-1]) and self._stop(written)

    def _room(self) -> int | None:
        told = self._llama.metadata
        found = told.get(f"{told.get('general.architecture')}.context_length")
        return int(found) if found is not None else None
