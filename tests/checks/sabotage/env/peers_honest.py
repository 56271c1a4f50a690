"""Nothing is wrong: the probe itself, on two places in the CPU's memory."""

from __future__ import annotations

import dataclasses

from envcheck.checks.env import peer_to_peer

CHECK = dataclasses.replace(peer_to_peer.CHECK, gpus=0)
judge = peer_to_peer.judge
measure = peer_to_peer.measure
