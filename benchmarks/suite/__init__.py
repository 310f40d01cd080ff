"""What `make bench` measures, a file for each kind of work; `groups` lists it."""
