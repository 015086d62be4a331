"""``python -m countdown_rl`` is ``countdown-rl``; Accelerate's launcher starts it this way."""

from countdown_rl.cli.main import main

main()
