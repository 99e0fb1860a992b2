"""C++ sources of plugins, compiled by this machine: what groups share that bring some."""
