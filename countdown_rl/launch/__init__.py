"""Accelerate configurations that `train --launch` picks by name; ``accelerate launch --config_file`` reads them too."""
