"""Fixtures of the tests of engines."""

import pytest

from countdown_rl.export import quantize
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.models import reference


@pytest.fixture(scope="session")
def gguf(tmp_path_factory):
    """The packaged model as the GGUF file that ``quantize`` writes."""
    out = tmp_path_factory.mktemp("gguf") / "tiny"
    quantize.quantize_model(
        reference.find_model("countdown-tiny"), out, QuantizeOptions(format="gguf", gguf_type="f16")
    )
    return out
