"""Speed and soak: figures that are ratios to limits measured in the same run."""
