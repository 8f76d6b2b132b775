"""What runs on a GPU box: wheels for an offline one (gpu_pack), and every check in numbered steps (gpu_run)."""
