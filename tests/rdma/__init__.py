"""Tests that need an RDMA device, real or of software; `make test-rdma` runs them in a virtual machine that has one."""
