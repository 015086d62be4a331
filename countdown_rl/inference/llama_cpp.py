"""The llama.cpp engine, through the server in the ``xllamacpp`` wheel (2026.10)."""

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from countdown_rl.errors import ModelError
from countdown_rl.inference import generate
from countdown_rl.inference.generate import Completion, Decoding
from countdown_rl.models import load
from countdown_rl.models.reference import ModelRef, check_unchanged, local_path

#: Completions decoded in parallel; more are no faster on one core.
SLOTS = 8

#: Rows submitted at once: a free slot takes the next one; finished rows are saved after each submission.
_ROWS = 32


class LlamaCpp:
    """A GGUF file in llama.cpp's own arithmetic, several completions at a time.

    Prompts are encoded by this package's tokenizer, and completions are cut where the other engines end. A slot reads
    the prefix that a prompt shares with its previous one only once.
    """

    name = "llama-cpp"
    storage = "gguf"
    libraries: tuple[str, ...] = ("xllamacpp",)

    def __init__(self, ref: ModelRef, decoding: Decoding, *, threads: int = 0, device: str = "auto") -> None:
        from countdown_rl.inference.stop import Stop

        self._ref, self._file = ref, local_path(ref)
        self._decoding, self._threads = decoding, threads
        self._server: Any = None
        self._length = 0
        self.device = _resolve_device(device)
        self.tokenizer = load.load_tokenizer(ref)
        self.precision = re.split(r"[.-]", self._file.stem)[-1].lower()  # from names such as model.Q4_1.gguf
        self._stop = Stop(self.tokenizer, None, generate.STOP)

    def prepare(self, length: int) -> int | None:
        if length > self._length:
            self._server = None  # ends the one before, which holds the memory
            self._server = server(self._file, length * SLOTS, SLOTS, threads=self._threads, on_cpu=self.device == "cpu")
            self._length = length
            check_unchanged(self._ref)
        context = request(self._server, "/v1/models")["data"][0]["meta"]["n_ctx_train"]
        return int(context) if context is not None else None

    def max_rows(self, prompt: int, completion: int) -> int:
        return _ROWS

    def complete(self, prompts: Sequence[Sequence[int]], number: int = 0) -> list[Completion]:
        # The largest 32-bit seed makes llama.cpp choose a random one.
        seeds = [generate.row_seed(self._decoding.seed, number, index) % (2**32 - 1) for index in range(len(prompts))]
        with ThreadPoolExecutor(SLOTS) as threads:
            return list(threads.map(self._complete, prompts, seeds))

    def _complete(self, prompt: Sequence[int], seed: int) -> Completion:
        response = self._server.handle_completions(
            {
                "prompt": list(prompt),
                "n_predict": self._decoding.max_new_tokens,
                "stop": [generate.STOP],
                "samplers": list(generate.SAMPLERS),
                **{name: getattr(self._decoding, name) for name in generate.SAMPLERS},
                "seed": seed,
                "return_tokens": True,
                "verbose": True,  # needed for the tokens
            }
        )
        if "error" in response:
            raise ModelError(f"llama.cpp stopped: {response['error']['message']}.")
        details = response["__verbose"]
        ids = self._stop.cut(details["tokens"])
        return generate.to_completion(self._stop, ids, ended=details["stop_type"] != "limit")


def server(file: Path, context: int, slots: int, *, threads: int = 0, on_cpu: bool = False) -> Any:
    """Start llama.cpp's server with the GGUF *file* and a context of *context* tokens, shared by *slots*."""
    import torch
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_parallel = context, slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads or torch.get_num_threads()
    if on_cpu:
        params.n_gpu_layers = 0
    params.verbosity = -1
    params.warmup = params.fit_params = False
    params.cache_ram_mib = 0  # no prompt is asked twice
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:  # without a reason
        raise ModelError(
            f"llama.cpp cannot load {file.name}: it is damaged, too large, or of an architecture that xllamacpp "
            f"{xllamacpp.__version__} does not know."
        ) from error


def request(server: Any, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """The response of *server* at *path*, for endpoints without a Python function; it listens on this machine."""
    data = None if body is None else json.dumps(body).encode()
    message = Request(server.listening_address + path, data, {"Content-Type": "application/json"})  # noqa: S310
    with build_opener(ProxyHandler({})).open(message, timeout=60) as response:
        return json.loads(response.read())


def _resolve_device(name: str) -> str:
    """The device that llama.cpp will use, by its name for it; "cpu" where it has no GPU."""
    import xllamacpp

    gpus = [device["name"].lower() for device in xllamacpp.get_device_info() if "GPU" in device["type"].name]
    if name in ("cuda", "mps") and not gpus:
        raise ModelError(
            f"this build of llama.cpp has no GPU; leave --device {name} out, or install xllamacpp's wheel for it."
        )
    return gpus[0] if gpus and name != "cpu" else "cpu"
