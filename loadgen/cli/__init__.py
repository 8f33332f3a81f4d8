"""The commands: they read options, call the layers below and print; nothing else."""
