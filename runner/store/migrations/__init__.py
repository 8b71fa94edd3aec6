"""What leads from one version's tables to the next; run by migrate.py and by nobody else."""
