"""Copy a LoRA adapter with a larger update of the weights: ``scale_adapter.py ADAPTER FACTOR OUT``.

The update is ``lora_alpha / r * B @ A``; FACTOR multiplies ``lora_alpha``. The manifest is left
out, since it holds the digests of the original.
"""

import json
import shutil
import sys
from pathlib import Path

if __name__ == "__main__":
    adapter, factor, out = sys.argv[1:]
    shutil.copytree(
        adapter, out, ignore=shutil.ignore_patterns("manifest.json"), dirs_exist_ok=True
    )
    config_file = Path(out, "adapter_config.json")
    config = json.loads(config_file.read_text())
    config["lora_alpha"] *= int(factor)
    config_file.write_text(json.dumps(config, indent=2) + "\n")
