"""The driver over the core: command line, one run from workload to report, the run folder."""
