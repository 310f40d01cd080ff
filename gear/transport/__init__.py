"""How a client reaches the tables: the control channel and the data paths, one file each.

`base` is the interface all data paths share; `inproc` and `shm` implement it.
"""
