"""GPUs: which there are, their memory, and how tables and batches get there.

What a GPU does stands in `gear.kernels`; what a machine without one lacks stands behind `gear.devices.seam`.
"""
