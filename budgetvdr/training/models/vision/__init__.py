"""Vision-language models with early exits, over the layers of published checkpoints."""
