"""The two small networks that the recorded runs were made with."""

from torch import nn


def conv_net(classes: int = 10) -> nn.Sequential:
    """Five conv-BN-ReLU blocks, global pooling, one linear head (BatchNorm network)."""
    layers, width = [], 3
    for out, stride in ((8, 1), (8, 1), (12, 2), (12, 1), (16, 2)):
        layers += [nn.Conv2d(width, out, 3, stride=stride, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


class MlpBlock(nn.Module):
    """Pre-norm residual MLP over tokens."""

    def __init__(self, dim: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.mix = nn.Linear(9, 9)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x):
        x = x + self.mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


class TokenNet(nn.Module):
    """Patch embedding, three mixer blocks, final LayerNorm, linear head (LayerNorm network)."""

    def __init__(self, classes: int = 10, dim: int = 24):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, 4, stride=4)
        self.blocks = nn.Sequential(*(MlpBlock(dim) for _ in range(3)))
        self.last_norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(self.last_norm(self.blocks(x)).mean(1))


def token_net(classes: int = 10) -> TokenNet:
    return TokenNet(classes)
