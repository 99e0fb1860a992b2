"""`interlock new-plugin`: a complete distribution to start from."""
