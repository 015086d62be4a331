"""llama.cpp as an engine, by way of the server that the ``xllamacpp`` wheel carries (2026.10)."""

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from countdown_rl import processes
from countdown_rl.errors import ModelError
from countdown_rl.inference import generate
from countdown_rl.inference.generate import Completion, Decoding
from countdown_rl.models import load
from countdown_rl.models.reference import ModelRef, files

#: Completions that are written together; on one core more of them bring nothing.
SLOTS = 8

#: Rows that are handed over at once: a slot that is free takes the next, and what is finished is kept after each lot.
_ROWS = 32


class LlamaCpp:
    """A GGUF file in llama.cpp's own arithmetic, several completions at a time.

    Prompts go in as the tokens of this package's tokenizer, and what comes back is cut where the other
    engines end. What a prompt has in common with the one before it in its slot is read once.
    """

    name = "llama-cpp"
    path = "gguf"
    note = ""
    libraries: tuple[str, ...] = ("xllamacpp",)

    def __init__(self, ref: ModelRef, decoding: Decoding, *, threads: int = 0, device: str = "auto") -> None:
        from countdown_rl.inference.cpu_decoder import Stop

        self._file = files(ref)
        self._decoding, self._threads = decoding, threads
        self._server: Any = None
        self._length = 0
        self.device = _device(device)
        self.tokenizer = load.load_tokenizer(ref)
        self.precision = re.split(r"[.-]", self._file.stem)[-1].lower()  # names are such as model.Q4_1.gguf
        self._stop = Stop(self.tokenizer, None, generate.STOP)

    def prepare(self, length: int) -> int | None:
        if length > self._length:
            self.close()
            self._server = server(self._file, length * SLOTS, SLOTS, threads=self._threads, on_cpu=self.device == "cpu")
            self._length = length
        found = asked(self._server, "/v1/models")["data"][0]["meta"]["n_ctx_train"]
        return int(found) if found is not None else None

    def rows(self, length: int) -> int:
        return _ROWS

    def complete(self, prompts: Sequence[Sequence[int]], number: int = 0) -> list[Completion]:
        # The largest seed is llama.cpp's word for a random one.
        seeds = [generate.row_seed(self._decoding.seed, number, at) % (2**32 - 1) for at in range(len(prompts))]
        with ThreadPoolExecutor(SLOTS) as threads:
            return list(threads.map(self._complete, prompts, seeds))

    def close(self) -> None:
        self._server, self._length = None, 0

    def _complete(self, prompt: Sequence[int], seed: int) -> Completion:
        decoding = self._decoding
        answer = self._server.handle_completions(
            {
                "prompt": list(prompt),
                "n_predict": decoding.max_new_tokens,
                "stop": [generate.STOP],
                "samplers": ["temperature", "top_p"],  # nothing else, and in the order of transformers
                "temperature": decoding.temperature,
                "top_p": decoding.top_p,
                "seed": seed,
                "return_tokens": True,
                "verbose": True,  # only then it tells the tokens
            }
        )
        if "error" in answer:
            raise ModelError(f"llama.cpp cannot go on: {answer['error']['message']}.")
        told = answer["__verbose"]
        ids = self._stop.cut(told["tokens"])
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Completion(text, len(ids), told["stop_type"] != "limit" or (bool(ids) and self._stop(ids)))


def server(file: Any, context: int, slots: int, *, threads: int = 0, on_cpu: bool = False) -> Any:
    """llama.cpp's server with the GGUF *file* in it and *context* tokens of room, which *slots* share.

    Raises:
        ModelError: llama.cpp cannot load it.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_parallel = context, slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads or processes.cpu_threads()
    if on_cpu:
        params.n_gpu_layers = 0
    params.verbosity = -1
    params.warmup = params.fit_params = False
    params.cache_ram_mib = 0  # prompts are not asked again
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:  # of which it says no more than that
        raise ModelError(
            f"llama.cpp cannot load {file.name}: it is damaged, too large, or of an architecture that xllamacpp "
            f"{xllamacpp.__version__} does not know."
        ) from error


def asked(held: Any, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """What the server *held* answers at *path*, of what only its port on this machine gives."""
    data = None if body is None else json.dumps(body).encode()
    # The address is the server's own, on this machine.
    request = Request(held.listening_address + path, data, {"Content-Type": "application/json"})  # noqa: S310
    with build_opener(ProxyHandler({})).open(request, timeout=60) as answer:
        return json.loads(answer.read())


def _device(wanted: str) -> str:
    """The device that llama.cpp computes on, as it calls it; "cpu" where it has no other or *wanted* is that.

    Raises:
        ModelError: *wanted* is a GPU, and this build of llama.cpp has none.
    """
    import xllamacpp

    others = [one["name"].lower() for one in xllamacpp.get_device_info() if "GPU" in one["type"].name]
    if wanted in ("cuda", "mps") and not others:
        raise ModelError(
            f"this build of llama.cpp has no GPU; leave --device {wanted} out, or install xllamacpp's wheel for it."
        )
    return others[0] if others and wanted != "cpu" else "cpu"
