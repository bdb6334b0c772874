"""Entry points: flags in, one library call, nothing else."""
