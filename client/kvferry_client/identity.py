"""Which objects an engine may share: its namespaces, now and after its weights changed.

Logs through the client's logger. No vLLM import: it reads vLLM's config by attribute.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from typing import TYPE_CHECKING, Any, Final

from kvferry_client.fingerprint import find_model, weights_fingerprint
from kvferry_client.namespace import make_namespace, offloading_fields

if TYPE_CHECKING:
    from kvferry_client.tier_config import TierConfig

MAX_VLLM_NAMESPACE_BYTES: Final = 512
_VLLM_NAMESPACE: Final = re.compile(r"[^/\x00-\x1f\x7f]+_[0-9a-f]{12}_r[0-9]{1,9}")

logger = logging.getLogger("kvferry_client")


class Identity:
    """The namespaces of one engine.

    Args:
        spec_config: vLLM's OffloadingConfig.
        config: the tier's options.
        slot_bytes: size of a chunk.
        vllm_namespace: what vLLM's own tiers would use.
    """

    def __init__(
        self,
        spec_config: Any,  # noqa: ANN401 - of any supported version
        config: TierConfig,
        slot_bytes: int,
        vllm_namespace: str,
    ) -> None:
        self._fields = offloading_fields(spec_config, slot_bytes, os.environ)
        self._rank = spec_config.parallel.rank
        self._config = config
        self._weights = _fingerprint(spec_config.model.name, config)
        self._epoch = config.cache_epoch
        fits = (
            _VLLM_NAMESPACE.fullmatch(vllm_namespace)
            and len(vllm_namespace.encode()) <= MAX_VLLM_NAMESPACE_BYTES
        )
        self.vllm_namespace = vllm_namespace if fits else ""

    @property
    def namespace(self) -> str:
        """The namespace under kvferry's own naming."""
        return make_namespace(
            self._fields,
            rank=self._rank,
            weights=self._weights,
            model_revision=self._config.model_revision,
            cache_epoch=self._epoch,
        )

    def begin_epoch(self) -> None:
        """Share nothing any more with what was stored before, or by any other process.

        vLLM's own names have no room for an epoch, so there is none under them any more.
        """
        self._epoch = f"{self._config.cache_epoch}+{secrets.token_hex(8)}"
        self.vllm_namespace = ""


def _fingerprint(model_name: str, config: TierConfig) -> str:
    model = find_model(model_name, config.model_revision, os.environ)
    weights = ""
    try:
        weights = weights_fingerprint(model) if model is not None else ""
    except OSError as error:
        logger.warning("kvferry can't read the model's weights: %s", error)
    if not weights and not (config.model_revision or config.cache_epoch):
        logger.warning(
            "kvferry found no weights of this model, so it can't tell fine-tunes at one path "
            "apart: set 'model_revision' or 'cache_epoch' in the tier's config"
        )
    return weights
