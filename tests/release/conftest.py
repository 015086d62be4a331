"""A chain of artifacts and a release of it, built once, and copies of them to change."""

import shutil
from pathlib import Path

import pytest

from countdown_rl.release import folder as release
from countdown_rl.release.config import PublishOptions
from tests.support import release_chain


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``release_chain.chain`` with a GGUF, its evaluation and a training log. Do not write to it."""
    root = release_chain.chain(tmp_path_factory.mktemp("chain"))
    release_chain.quantized(root, "gguf")
    release_chain.evaluate(root, "gguf", accuracy=0.6)
    return root


@pytest.fixture
def root(chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the chain, as the working directory."""
    shutil.copytree(chain, tmp_path / "root")
    monkeypatch.chdir(tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture(scope="session")
def built(chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release of the merged weights. Do not write to it."""
    out = tmp_path_factory.mktemp("built") / "release"
    release.build(PublishOptions(model=str(chain / "merged")), out)
    return out


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy of the release of the merged weights."""
    return Path(shutil.copytree(built, tmp_path / "release"))
