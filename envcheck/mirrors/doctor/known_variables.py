"""Variables that people set but no program reads, or that are outdated, and their replacements."""

from __future__ import annotations

from typing import Final

IGNORED: Final = {
    "HF_MIRROR": "HF_ENDPOINT",
    "HF_MIRROR_URL": "HF_ENDPOINT",
    "HUGGINGFACE_MIRROR": "HF_ENDPOINT",
    "HUGGINGFACE_ENDPOINT": "HF_ENDPOINT",
    "HF_HUB_ENDPOINT": "HF_ENDPOINT",
    "PIP_MIRROR": "PIP_INDEX_URL",
    "PYPI_MIRROR": "PIP_INDEX_URL",
    "PIP_INDEX": "PIP_INDEX_URL",
    "UV_MIRROR": "UV_DEFAULT_INDEX",
    "CONDA_MIRROR": "channel_alias in .condarc",
    "NPM_MIRROR": "NPM_CONFIG_REGISTRY",
    "TORCH_CACHE": "TORCH_HOME",
}
TORCH: Final = {
    "PYTORCH_MIRROR": "an index for torch: --index-url in pip, [[index]] in uv.toml",
    "TORCH_MIRROR": "an index for torch: --index-url in pip, [[index]] in uv.toml",
    "PYTORCH_INDEX": "an index for torch: --index-url in pip, [[index]] in uv.toml",
}
OUTDATED: Final = {
    "HF_HUB_ENABLE_HF_TRANSFER": "remove it: huggingface_hub no longer has hf_transfer; see `envcheck fetch`",
    "TRANSFORMERS_CACHE": "set HF_HOME",
    "PYTORCH_TRANSFORMERS_CACHE": "set HF_HOME",
    "PYTORCH_PRETRAINED_BERT_CACHE": "set HF_HOME",
    "HUGGINGFACE_HUB_CACHE": "set HF_HUB_CACHE",
    "HUGGING_FACE_HUB_TOKEN": "set HF_TOKEN",
    "TRANSFORMERS_OFFLINE": "set HF_HUB_OFFLINE=1",
    "UV_INDEX_URL": "set UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL": "set UV_INDEX",
}
