"""Downloads from the Hub: whole, or one sentence with the library's words."""

import pytest

from countdown_rl.core import hub as core_hub
from countdown_rl.core.errors import ModelError
from tests.support.hub import EXPIRED


def test_what_the_hub_answers_is_told_in_its_words(hub, tmp_path, monkeypatch):
    def sentence(name="me/it", revision=None):
        with pytest.raises(ModelError, match=name) as raised:
            core_hub.download(name, revision)
        assert "\n" not in str(raised.value)
        return str(raised.value)

    (tmp_path / "config.json").write_text("{}")
    hub.add_model("me/it", tmp_path)
    assert "Repository Not Found" in sentence("me/gone")
    assert "v9" in sentence(revision="v9")
    monkeypatch.setenv("HF_TOKEN", EXPIRED)
    assert EXPIRED not in sentence()
    hub.fail("GET|HEAD", times=100, status=503)
    assert "503" in sentence()
