"""Networks: hidden states and a head, and the configs that build them."""

from tauflow.networks.network import Network, NetworkConfig, network_from
from tauflow.networks.transformer import Transformer, TransformerConfig
from tauflow.networks.unet import UNet, UNetConfig

__all__ = [
    "Network",
    "NetworkConfig",
    "Transformer",
    "TransformerConfig",
    "UNet",
    "UNetConfig",
    "network_from",
]
