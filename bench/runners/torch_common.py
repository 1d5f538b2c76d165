"""What the methods on PyTorch share."""

from __future__ import annotations

from bench.job import Job

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def set_up(job: Job) -> str:
    """PyTorch is imported and has the job's threads; gives its version."""
    import torch

    if not job.device.startswith("cuda"):
        torch.set_num_threads(job.threads)
    else:
        torch.zeros(1, device=job.device)
    return f"torch {torch.__version__}"


def synchronize(device: str) -> None:
    """The device has done what it was given."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)
