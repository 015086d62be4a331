"""Headers of GGUF files; those made to do harm are in tests/hostile."""

import gguf

from countdown_rl.models import gguf_header


def test_a_header_is_read_as_its_library_writes_it(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_block_count(3)
    writer.add_rope_freq_base(0.5)
    writer.add_add_bos_token(False)
    writer.add_token_list(["a", "é", ""])
    writer.add_token_types([1, 3, 2])
    writer.add_chat_template("{{ '→' }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert gguf_header.read(tmp_path / "model.gguf") == {
        "general.architecture": "llama",
        "llama.block_count": 3,
        "llama.rope.freq_base": 0.5,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.tokens": None,
        "tokenizer.ggml.token_type": (1, 3, 2),
        "tokenizer.chat_template": "{{ '→' }}",
    }
