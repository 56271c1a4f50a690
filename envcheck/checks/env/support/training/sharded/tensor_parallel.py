"""Two layers whose weights are split over the ranks, trained as in one process."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Rank
from envcheck.checks.env.support.collectives import process_group
from envcheck.checks.env.support.training import model_replicas, plain_math

# Rows of the first layer on each rank: local tensors between the layers have to be alike in size.
PER_RANK, SAMPLES, STEPS = 12, 6, 3
RATE = 0.05


def trained(torch: Any, rank: Rank, dist: Any) -> float | str:
    """Split the first layer by its rows and the second by its columns, train; return how far all is off."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    device, seed, width = process_group.device_of(rank), plain_math.seed_of(rank), PER_RANK * rank.world
    module = model_replicas.model(torch, width).to(device)
    model_replicas.start(torch, module, f"{seed} parallel")
    start = [plain_math.flat(part) if isinstance(part[0], list) else part for part in model_replicas.weights(module)]
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    split = parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer, now, errors = torch.optim.SGD(split.parameters(), lr=RATE), start, list[float]()
    for step in range(STEPS):
        batch = model_replicas.batch(torch, f"{seed} parallel {step}", SAMPLES, width, device)
        shaped = [plain_math.rows(now[0], width), now[1], plain_math.rows(now[2], width), now[3]]
        right, gradients = plain_math.two_layers(shaped, *batch.rows)
        now = [[x - RATE * g for x, g in zip(part, grad)] for part, grad in zip(now, gradients)]
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(split(batch.tensors[0]), batch.tensors[1])
        loss.backward()
        optimizer.step()
        errors.append(plain_math.off([float(loss.detach())], [right]))
    held = [(p.to_local().numel(), p.numel()) for p in split.parameters()]
    if any(mine * rank.world != whole for mine, whole in held[:3]) or held[3][0] != held[3][1]:
        return f"rank {rank.rank} holds {held} numbers of each parameter: they are not split"
    way = max(abs(new - old) for ends, begins in zip(now, start) for new, old in zip(ends, begins))
    whole = [plain_math.numbers(p.full_tensor()) for p in split.parameters()]
    return model_replicas.worst([*errors, *(plain_math.off(actual, due, way) for actual, due in zip(whole, now))])
