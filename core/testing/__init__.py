"""The conformance kit: one contract class per seam."""
