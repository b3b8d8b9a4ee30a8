"""The operations of a group whose ranks have a GPU each: by NCCL, on the GPUs' own arrays."""
