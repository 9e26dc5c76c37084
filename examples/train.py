"""Train a small network on a dataset that `ingest` built. Copy this and put your own model in.

python examples/train.py [DATASET] [--epochs 5] [--batch-size 256] [--device cpu]
"""

import argparse
import time

import torch
from torch import nn

import ingest


def small_cnn(num_classes: int) -> nn.Sequential:
    """Return a network for pictures (B, 3, S, S): four convolutions, each halving the sides."""
    layers: list[nn.Module] = []
    for channels_in, channels_out in ((3, 16), (16, 32), (32, 64), (64, 128)):
        convolution = nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(channels_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, num_classes))


def train_epoch(
    loader: ingest.Loader, model: nn.Module, optimiser: torch.optim.Optimizer
) -> tuple[float, float, float]:
    """Train on each batch once; return mean loss, accuracy (0 to 1) and images/s."""
    total_loss = torch.zeros((), device=loader.device)
    num_right = torch.zeros((), device=loader.device)
    num_seen, start = 0, time.perf_counter()
    for images, labels in loader:
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        num_seen += len(labels)
        total_loss += loss.detach() * len(labels)  # stays on the device: .item() here would wait each step
        num_right += (scores.argmax(1) == labels).sum()
    mean_loss, accuracy = total_loss.item() / num_seen, num_right.item() / num_seen
    return mean_loss, accuracy, num_seen / (time.perf_counter() - start)


def main() -> None:
    """Read the command line, open the dataset, train."""
    parser = argparse.ArgumentParser(description="Train a small network on a dataset that ingest built.")
    parser.add_argument("dataset", nargs="?", default="data/demo-224", help="path or URL (%(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, help="pictures in a batch (%(default)s)")
    parser.add_argument("--device", help="cuda or cpu (cuda if there is one)")
    options = parser.parse_args()

    torch.manual_seed(0)
    with ingest.loader(
        options.dataset, batch_size=options.batch_size, device=options.device, transform="train"
    ) as loader:
        print(loader)
        if not loader.classes:
            raise ingest.ConfigError(f"{options.dataset} has no labels, and this script trains on labels")
        model = small_cnn(len(loader.classes)).to(loader.device)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for epoch in range(options.epochs):
            loss, accuracy, rate = train_epoch(loader, model, optimiser)
            print(f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy:.0%}, {rate:,.0f} images/s")


if __name__ == "__main__":
    try:
        main()
    except ingest.IngestError as error:
        raise SystemExit(f"train.py: {error}") from error
