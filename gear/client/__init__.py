"""The client: insert, write, sample, load. Its public names are `connect`, `embedded` and `Client`."""

from gear.client.client import Client
from gear.client.opening import connect, embedded

__all__ = ["Client", "connect", "embedded"]
